// Runs a part of a test in a child process: what a process finds at its first call can thus be tested more
// than once.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "lossc/error.h"

namespace lossc::test {

/// What `work` returns in a child of fork() with these environment variables set; an Error comes back as
/// "CODE: MESSAGE" (the number of its code). "died" where the child did not end well.
template <class Work>
std::string in_child(const std::map<std::string, std::string>& environment, Work work) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::close(ends[0]);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::string answer;
    try {
      answer = work();
    } catch (const Error& error) {
      answer = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    } catch (const std::exception& error) {
      answer = std::string("exception: ") + error.what();
    }
    for (std::size_t sent = 0; sent < answer.size();) {
      const ssize_t written = ::write(ends[1], answer.data() + sent, answer.size() - sent);
      if (written <= 0) ::_exit(1);
      sent += static_cast<std::size_t>(written);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string answer;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], block, sizeof block)) > 0;) {
    answer.append(block, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return "died";
  return answer;
}

/// How in_child() begins the answer of an Error with this code.
inline std::string code_text(ErrorCode code) {
  return std::to_string(static_cast<int>(code)) + ": ";
}

}  // namespace lossc::test
