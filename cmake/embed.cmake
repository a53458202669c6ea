# Writes OUTPUT, a C++ file with the text of every file of templates/ named in FILES (separated by commas):
#   cmake -DOUTPUT=... -DFOLDER=... -DFILES=a,b -P embed.cmake
string(REPLACE "," ";" names "${FILES}")
set(text "#include \"compiler/cuda/templates.h\"\n\n#include <string>\n\n#include \"lossc/error.h\"\n\nnamespace lossc::cuda {\n\n")
string(APPEND text "std::string_view template_text(std::string_view file) {\n")
foreach(name IN LISTS names)
  file(READ "${FOLDER}/${name}" content)
  # Compilers bound the length of one literal: cut at paragraphs, literals beside each other join.
  string(REPLACE "\n\n" "\n\n)lossc\" R\"lossc(" content "${content}")
  string(REPLACE "#pragma once\n" "" content "${content}")
  string(APPEND text "  if (file == \"${name}\") {\n    return R\"lossc(${content})lossc\";\n  }\n")
endforeach()
string(APPEND text "  throw Error(ErrorCode::internal, \"no template \" + std::string(file));\n}\n\n}  // namespace lossc::cuda\n")
file(WRITE "${OUTPUT}" "${text}")
