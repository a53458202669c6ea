// The one exception type of lossc. Every error carries a code, which the C ABI turns into a status.
#pragma once

#include <stdexcept>
#include <string>

namespace lossc {

enum class ErrorCode {
  invalid_spec,      ///< The loss spec is wrong: the message holds the JSON path, what was found, what is
                     ///< allowed.
  invalid_argument,  ///< A tensor, size or parameter given at run time is wrong.
  invalid_data,  ///< The content of a tensor is wrong (a label >= vocab): outputs are written, affected rows
                 ///< are NaN.
  unsupported,   ///< Right in principle, not available in this build or on this machine.
  compile_failed,  ///< A JIT compiler refused what lossc generated, or a device could not be used.
  io,              ///< A file could not be read or written, or is damaged.
  internal,        ///< A defect in lossc.
};

/// What went wrong, in a message that says what was found, what is allowed and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace lossc
