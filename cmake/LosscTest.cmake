# Tests. A test is one executable and one or more ctest entries, each with labels: `unit` (fast, no files but its own),
# `cli` (runs the lossc command), `gpu` (needs a CUDA device), `slow` (more than a few seconds).

# lossc_test(<name> SOURCES <file>... [LLVM] [LABELS <label>...] [TAGS <tag>...] [LIBRARIES <target>...]
#            [TIMEOUT <seconds>])
#
# Builds the Catch2 executable <name> and registers it with ctest under the labels (`unit` if none is given). For each
# of TAGS the cases that carry the Catch2 tag [<tag>] become an entry of their own, <name>.<tag> with the label <tag>,
# and are left out of the entry <name>; a case with several of the tags belongs to the first. An entry that matches no
# case fails. LLVM lets the test use LLVM itself; such a test is left out where the CPU backend is off.
function(lossc_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LLVM" "TIMEOUT" "SOURCES;LABELS;TAGS;LIBRARIES")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "lossc_test(${name}): wrong arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  if(arg_LLVM AND NOT LOSSC_ENABLE_LLVM)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  if(arg_LLVM)
    target_include_directories(${name} SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
    target_link_libraries(${name} PRIVATE LLVM)
  endif()
  target_link_libraries(${name} PRIVATE lossc::lossc lossc_internal lossc_test_main ${arg_LIBRARIES})

  set(options)
  if(Catch2_VERSION VERSION_LESS 3)
    list(APPEND options --warn NoTests) # Catch2 3 fails without being asked when no case matches.
  endif()
  set(excluded "")
  foreach(tag IN LISTS arg_TAGS)
    lossc_test_entry(${name}.${tag} LABELS ${tag} TIMEOUT ${arg_TIMEOUT} COMMAND ${name} "[${tag}]${excluded}"
                     ${options})
    string(APPEND excluded "~[${tag}]")
  endforeach()
  lossc_test_entry(${name} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT} COMMAND ${name} ${excluded} ${options})
endfunction()

# lossc_test_entry(<name> COMMAND <command> <argument>... [LABELS <label>...] [TIMEOUT <seconds>])
#
# Registers a command with ctest: it runs in the project's root and has a kernel cache of its own inside the build
# folder, which is empty when ctest starts; exit status 77 means skipped.
function(lossc_test_entry name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "COMMAND;LABELS")
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(
    ${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
                       ENVIRONMENT "LOSSC_CACHE_DIR=${PROJECT_BINARY_DIR}/test-cache/${name}"
                       FIXTURES_REQUIRED empty_test_cache)
endfunction()

# lossc_fuzzer(<name> SOURCES <file>...)
#
# Builds a libFuzzer executable that `./dev fuzz <name>` runs. Only the preset fuzz builds it.
function(lossc_fuzzer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  if(NOT LOSSC_BUILD_FUZZERS)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lossc::lossc lossc_internal)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
