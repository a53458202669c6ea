# The headers of the CUDA backend: cuda.h and nvrtc.h of CUDA 12.0 or newer, from one toolkit or from the wheels that
# `./dev setup` fetches into .deps/cuda where there is no toolkit. Only headers are needed: libcuda and libnvrtc are
# opened at run time.
#
# Sets LOSSC_HAS_CUDA, LOSSC_CUDA_INCLUDE_DIR, LOSSC_CUDA_VERSION ("13.0") and LOSSC_NVRTC_HINTS, the folders that the
# library looks into for NVRTC besides the usual ones, with a colon between them.

set_property(CACHE LOSSC_ENABLE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LOSSC_HAS_CUDA OFF)
set(LOSSC_CUDA_INCLUDE_DIR "")
set(LOSSC_NVRTC_HINTS "")
if(NOT LOSSC_ENABLE_CUDA)
  message(STATUS "lossc: no CUDA backend (LOSSC_ENABLE_CUDA is off)")
  return()
endif()

set(lossc_cuda_deps "${PROJECT_SOURCE_DIR}/.deps/cuda")
set(lossc_cuda_roots "")
foreach(root IN ITEMS "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" "/usr/local/cuda" "/opt/cuda" "/usr"
                      "${lossc_cuda_deps}/nvidia/cu13")
  if(root)
    list(APPEND lossc_cuda_roots "${root}")
  endif()
endforeach()
if(CUDAToolkit_ROOT)
  set(lossc_cuda_roots "${CUDAToolkit_ROOT}") # who names one wants no other
endif()

set(lossc_cuda_tried "")
foreach(root IN LISTS lossc_cuda_roots)
  foreach(folder IN ITEMS include targets/x86_64-linux/include targets/sbsa-linux/include)
    set(include "${root}/${folder}")
    if(LOSSC_HAS_CUDA OR NOT EXISTS "${include}/cuda.h" OR NOT EXISTS "${include}/nvrtc.h")
      continue()
    endif()
    file(STRINGS "${include}/cuda.h" line REGEX "^#define CUDA_VERSION +[0-9]+")
    string(REGEX MATCH "[0-9]+$" version "${line}")
    if(NOT version OR version LESS 12000)
      string(APPEND lossc_cuda_tried "\n  ${include}: CUDA_VERSION ${version}, 12000 or more is needed")
      continue()
    endif()
    math(EXPR major "${version} / 1000")
    math(EXPR minor "${version} % 1000 / 10")
    set(LOSSC_HAS_CUDA ON)
    set(LOSSC_CUDA_INCLUDE_DIR "${include}")
    set(LOSSC_CUDA_VERSION "${major}.${minor}")
    foreach(library IN ITEMS lib64 lib)
      if(EXISTS "${root}/${library}")
        list(APPEND LOSSC_NVRTC_HINTS "${root}/${library}")
      endif()
    endforeach()
  endforeach()
  if(NOT LOSSC_HAS_CUDA)
    string(APPEND lossc_cuda_tried "\n  ${root}")
  endif()
endforeach()
list(REMOVE_ITEM LOSSC_NVRTC_HINTS /usr/lib64 /usr/lib)
if(EXISTS "${lossc_cuda_deps}")
  list(APPEND LOSSC_NVRTC_HINTS "${lossc_cuda_deps}/nvidia/cu13/lib")
endif()
list(REMOVE_DUPLICATES LOSSC_NVRTC_HINTS)
list(JOIN LOSSC_NVRTC_HINTS ":" LOSSC_NVRTC_HINTS)

if(LOSSC_HAS_CUDA)
  message(STATUS "lossc: CUDA backend with the headers of CUDA ${LOSSC_CUDA_VERSION} (${LOSSC_CUDA_INCLUDE_DIR})")
else()
  set(lossc_cuda_message
      "lossc: cuda.h and nvrtc.h were not found in:${lossc_cuda_tried}\n"
      "Install the CUDA toolkit (12.0 or newer), name its folder with -DCUDAToolkit_ROOT=..., or run `./dev setup`, "
      "which fetches the headers.")
  list(JOIN lossc_cuda_message "" lossc_cuda_message)
  if(LOSSC_ENABLE_CUDA STREQUAL "AUTO")
    message(NOTICE "${lossc_cuda_message}\nlossc: building without the CUDA backend.")
  else()
    message(FATAL_ERROR "${lossc_cuda_message}")
  endif()
endif()
