# The target lossc_options: warnings and sanitizers for every target of the project. Also sets ccache as the launcher
# where it is found.

add_library(lossc_options INTERFACE)
target_compile_options(lossc_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow
                                               $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
# "text" + std::string makes GCC 12 and 13 warn without cause (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  target_compile_options(lossc_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(LOSSC_WERROR)
  target_compile_options(lossc_options INTERFACE -Werror)
endif()

if(LOSSC_SANITIZE)
  list(JOIN LOSSC_SANITIZE "," lossc_sanitizers)
  set(lossc_sanitize_flags -fsanitize=${lossc_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(lossc_options INTERFACE ${lossc_sanitize_flags})
  target_link_options(lossc_options INTERFACE ${lossc_sanitize_flags})
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LOSSC_CCACHE ccache)
  mark_as_advanced(LOSSC_CCACHE)
  if(LOSSC_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER "${LOSSC_CCACHE}")
    set(CMAKE_CXX_COMPILER_LAUNCHER "${LOSSC_CCACHE}")
  endif()
endif()
