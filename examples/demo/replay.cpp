#include "replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "runtime/safetensors.h"

namespace demo {
namespace {

using lossc::tensor;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw std::runtime_error(fmt::format("cannot write {}", path.string()));
}

int run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  pid_t child = 0;
  if (const int error = posix_spawn(&child, words[0].c_str(), nullptr, nullptr, arguments.data(), environ)) {
    throw std::runtime_error(fmt::format("cannot run {}: {}", words[0], std::strerror(error)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error(fmt::format("cannot wait for {}", words[0]));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Compares one tensor of both files and prints the outcome.
bool compare(const char* name, const lossc::SafetensorsFile& expected, const lossc::SafetensorsFile& result) {
  const lossc::TensorView *ours = expected.find(name), *theirs = result.find(name);
  if (theirs == nullptr || theirs->dtype != ours->dtype || theirs->size() != ours->size()) {
    fmt::print("  {:<12} is {} here, {} there\n", name, ours->describe(),
               theirs == nullptr ? "missing" : theirs->describe());
    return false;
  }
  const auto count = static_cast<std::size_t>(ours->size());
  const float *a = static_cast<const float*>(ours->data), *b = static_cast<const float*>(theirs->data);
  std::size_t different = 0;
  for (std::size_t i = 0; i < count; ++i) different += std::memcmp(a + i, b + i, sizeof(float)) != 0;
  fmt::print("  {:<12} {:>8} numbers, {} differ{}\n", name, count, different,
             count == 1 ? fmt::format("   ({:.9g} here, {:.9g} there)", *a, *b) : "");
  return different == 0;
}

}  // namespace

std::filesystem::path lossc_command() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path() / "tools" / "lossc";
}

ReplayResult replay(const std::filesystem::path& command, const std::filesystem::path& folder,
                    const std::string& spec, PolicyResult& result) {
  const auto spec_file = folder / "spec.json", in = folder / "batch.safetensors",
             expected = folder / "expected.safetensors", out = folder / "result.safetensors";
  PolicyBatch& batch = result.last;
  const std::vector<std::int64_t> shape = {batch.rows(), vocab};
  std::filesystem::remove(out);
  write(spec_file, spec + "\n");
  lossc::write_safetensors(in.string(), {{"logits", tensor(batch.activations.logits, shape)},
                                         {"labels", tensor(batch.labels)},
                                         {"cu_seqlens", tensor(batch.cu_seqlens)},
                                         {"old_logprobs", tensor(batch.old_logprobs)},
                                         {"advantages", tensor(batch.advantages)}});
  lossc::write_safetensors(expected.string(),
                           {{"loss", tensor(&result.last_loss, {})},
                            {"grad_logits", tensor(batch.activations.grad_logits, shape)}});

  // {} prints the shortest text that reads back as the same number.
  const std::vector<std::string> words = {command.string(),
                                          "run",
                                          spec_file.string(),
                                          "--in",
                                          in.string(),
                                          "--out",
                                          out.string(),
                                          "--device",
                                          "cpu",
                                          "--set",
                                          fmt::format("policy.epsilon_low={}", result.last_epsilon_low),
                                          "--set",
                                          fmt::format("policy.epsilon_high={}", result.last_epsilon_high)};
  fmt::print("  {}\n", fmt::join(words, " "));
  if (!std::filesystem::exists(command)) {
    fmt::print("  {} is not there: build the target lossc_cli to compare\n", command.string());
    return ReplayResult::no_command;
  }
  if (const int status = run(words); status != 0) {
    fmt::print("  the command failed with exit status {}\n", status);
    return ReplayResult::different;
  }
  const auto ours = lossc::SafetensorsFile::read(expected.string());
  const auto theirs = lossc::SafetensorsFile::read(out.string());
  const bool loss = compare("loss", ours, theirs), gradient = compare("grad_logits", ours, theirs);
  return loss && gradient ? ReplayResult::same : ReplayResult::different;
}

}  // namespace demo
