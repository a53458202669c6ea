// Reads specs from standard input, one a line, and answers each with a line: "ok", or the error. With
// --schema it prints the JSON Schema of specs over the built-in losses. For tests in other languages.
#include <cstring>
#include <iostream>
#include <string>

#include "lossc/error.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--schema") == 0) {
    std::cout << lossc::spec_schema(lossc::LossRegistry::builtin());
    return 0;
  }
  if (argc != 1) {
    std::cerr << "usage: parse_spec [--schema] < specs, one a line\n";
    return 2;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    try {
      // What is accepted must also survive the canonical text.
      const std::string text = lossc::Spec::parse(line).to_json(-1);
      if (lossc::Spec::parse(text).to_json(-1) != text)
        throw std::runtime_error("the canonical text changes when read");
      std::cout << "ok " << text << '\n';
    } catch (const lossc::Error& error) {
      std::cout << "error " << error.what() << '\n';
    }
  }
  return 0;
}
