// The text that the demo learns from: bytes of files, a part of each held out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct Corpus {
  std::size_t files = 0;  ///< Files read; those with the same content count once.
  std::string train;      ///< The files one after the other, without the parts held out.
  std::string held_out;   ///< The last tenth of every file.
  double entropy_nats =
      0;  ///< Of the byte frequencies of `train`: what a model without context can reach at best.
  double entropy_bits() const;

  /// Reads files, and all files directly inside folders. Throws std::runtime_error when a file cannot be read
  /// or there is too little text to learn from.
  static Corpus read(const std::vector<std::string>& paths);
};

/// The `context` bytes before `position`, oldest first; spaces where the text has not begun.
void copy_context(const std::string& text, std::size_t position, std::size_t context, std::uint8_t* out);

}  // namespace demo
