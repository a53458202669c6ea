# Fuzz targets. libFuzzer belongs to clang, whatever compiler builds the project, so that a target compiles the few
# sources it needs by itself.

find_program(LOSSC_FUZZ_CXX NAMES clang++-19 clang++ DOC "The compiler of fuzz targets; needs libFuzzer")
mark_as_advanced(LOSSC_FUZZ_CXX)

# Does the compiler find its libFuzzer? Debian has it in a package of its own.
if(LOSSC_FUZZ_CXX AND NOT DEFINED LOSSC_FUZZ_WORKS)
  set(lossc_fuzz_probe "${CMAKE_CURRENT_BINARY_DIR}/fuzz_probe")
  file(WRITE "${lossc_fuzz_probe}.cpp"
       "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
  execute_process(
    COMMAND "${LOSSC_FUZZ_CXX}" -fsanitize=fuzzer,address "${lossc_fuzz_probe}.cpp" -o "${lossc_fuzz_probe}"
    RESULT_VARIABLE lossc_fuzz_result OUTPUT_QUIET ERROR_QUIET)
  if(lossc_fuzz_result EQUAL 0)
    set(LOSSC_FUZZ_WORKS ON CACHE INTERNAL "libFuzzer was found")
  else()
    message(STATUS "lossc: ${LOSSC_FUZZ_CXX} finds no libFuzzer (libclang-rt-19-dev): no fuzz targets")
    set(LOSSC_FUZZ_WORKS OFF CACHE INTERNAL "libFuzzer was not found")
  endif()
endif()

# lossc_fuzz(<name> SOURCES <file>... [LIBRARIES <target>...] [CORPUS <folder>] [MAX_LENGTH <bytes>]
#            [SECONDS <seconds>])
#
# Builds the libFuzzer executable <name> with the address sanitizer from SOURCES (relative to the project's root; the
# first holds LLVMFuzzerTestOneInput), and registers a ctest entry with the label `slow` that fuzzes for SECONDS (60 if
# not given) from the seeds in CORPUS. What it finds along the way stays in the build folder, as does the input of a
# failure. LIBRARIES are imported targets; only their include folders and link files are used. Does nothing, with a
# note, where there is no clang with libFuzzer.
function(lossc_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "CORPUS;MAX_LENGTH;SECONDS" "SOURCES;LIBRARIES")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "lossc_fuzz(${name}): wrong arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(LOSSC_BUILD_FUZZERS)
    # The whole project is built for fuzzing: link it, for `./dev fuzz`.
    list(POP_FRONT arg_SOURCES main)
    lossc_fuzzer(${name} SOURCES "${PROJECT_SOURCE_DIR}/${main}")
    return()
  endif()
  if(NOT LOSSC_FUZZ_CXX OR NOT LOSSC_FUZZ_WORKS)
    return()
  endif()
  if(NOT arg_SECONDS)
    set(arg_SECONDS 60)
  endif()
  if(NOT arg_MAX_LENGTH)
    set(arg_MAX_LENGTH 4096)
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/fuzz/${name}")
  file(MAKE_DIRECTORY "${folder}/corpus" "${folder}/failures")
  set(includes "-I${PROJECT_SOURCE_DIR}/include" "-I${PROJECT_SOURCE_DIR}")
  set(links "")
  foreach(library IN LISTS arg_LIBRARIES)
    # The compiler's own folders stay where it has them: the C++ library finds its C headers behind itself.
    set(folders "$<FILTER:$<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>,EXCLUDE,^/usr/include/?$>")
    set(definitions "$<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>")
    list(APPEND includes "$<$<BOOL:${folders}>:-isystem$<JOIN:${folders},;-isystem>>"
                         "$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},;-D>>")
    get_target_property(type ${library} TYPE)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
      list(APPEND links "$<TARGET_FILE:${library}>")
    endif()
  endforeach()

  set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  set(objects "")
  foreach(source IN LISTS arg_SOURCES)
    string(REPLACE "/" "_" object "${source}")
    set(object "${folder}/${object}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${launcher} "${LOSSC_FUZZ_CXX}" -std=c++20 -O1 -g -fsanitize=fuzzer,address -fno-omit-frame-pointer
              "${includes}" -MD -MF "${object}.d" -c "${PROJECT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${PROJECT_SOURCE_DIR}/${source}"
      DEPFILE "${object}.d"
      COMMENT "Building fuzz object ${name}: ${source}"
      COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  add_custom_command(
    OUTPUT "${folder}/${name}"
    COMMAND "${LOSSC_FUZZ_CXX}" -fsanitize=fuzzer,address ${objects} ${links} -o "${folder}/${name}"
    DEPENDS ${objects}
    COMMENT "Linking fuzz target ${name}"
    COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${folder}/${name}")

  set(seeds "")
  if(arg_CORPUS)
    set(seeds "${PROJECT_SOURCE_DIR}/${arg_CORPUS}")
  endif()
  lossc_test_entry(
    ${name}
    LABELS slow
    COMMAND "${folder}/${name}" -max_total_time=${arg_SECONDS} -max_len=${arg_MAX_LENGTH} -rss_limit_mb=2048
            -print_final_stats=1 "-artifact_prefix=${folder}/failures/" "${folder}/corpus" ${seeds})
endfunction()
