# cmake -DROOT=<folder> -DOUTPUT=<header> -DGLOBS=<pattern>|<pattern>... -P WriteGeneratorDigest.cmake
#
# Writes a header with one digest of the contents of the files that match: kernels are not taken from a cache that
# another state of the code generator filled.
string(REPLACE "|" ";" globs "${GLOBS}")
list(TRANSFORM globs PREPEND "${ROOT}/")
file(GLOB files RELATIVE "${ROOT}" ${globs})
list(SORT files)
set(text "")
foreach(file IN LISTS files)
  file(SHA256 "${ROOT}/${file}" hash)
  string(APPEND text "${file} ${hash}\n")
endforeach()
string(SHA256 digest "${text}")
file(WRITE "${OUTPUT}" "// The state of the code generator's sources.
#pragma once

namespace lossc {
inline constexpr const char* kGeneratorDigest = \"${digest}\";
}
")
