#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace demo {

Console Console::detect() {
  Console console;
  console.terminal = isatty(STDOUT_FILENO) != 0;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // In the order in which a locale is chosen.
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    console.unicode = locale.find("UTF-8") != locale.npos || locale.find("utf8") != locale.npos;
    break;
  }
  winsize size{};
  if (console.terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    console.width = std::clamp(static_cast<int>(size.ws_col), 40, 120);
  }
  return console;
}

Progress::Progress(const Console& console, std::string title, int total, bool lines)
    : console_(console), title_(std::move(title)), lines_(lines), total_(std::max(total, 1)) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::update(int done, const std::string& note) {
  done_ = done;
  note_ = note;
  if (console_.terminal) {
    if (Clock::now() - drawn_ >= std::chrono::milliseconds(100)) draw();
  } else if (lines_ && done * 10 / total_ > tenths_) {
    tenths_ = done * 10 / total_;
    fmt::print("  {} {:3} %  {}\n", title_, tenths_ * 10, note_);
    std::fflush(stdout);
  }
}

void Progress::draw() {
  const double share = static_cast<double>(done_) / total_;
  const double left = share > 0 ? seconds() * (1 - share) / share : 0;
  const std::string before = fmt::format("  {} ", title_);
  std::string after = fmt::format(" {:3.0f} %  {}  {:.0f} s left", 100 * share, note_, left);
  // One column stays free: a full line would wrap and could not be redrawn.
  const int room = console_.width - 1 - static_cast<int>(before.size());
  after.resize(std::min(after.size(), static_cast<std::size_t>(std::max(room, 0))));
  const int width = std::min(room - static_cast<int>(after.size()), 40);
  const int full = static_cast<int>(share * width);
  std::string bar;
  for (int i = 0; i < width; ++i) bar += console_.unicode ? (i < full ? "█" : "░") : (i < full ? "#" : ".");
  fmt::print("\r\033[K{}{}{}", before, bar, after);
  std::fflush(stdout);
  drawn_ = Clock::now();
}

void Progress::clear() {
  if (console_.terminal) fmt::print("\r\033[K");
}

void Progress::print(const std::string& line) {
  clear();
  fmt::print("{}\n", line);
  if (console_.terminal) draw();
  std::fflush(stdout);
}

void Progress::finish(const std::string& note) {
  clear();
  fmt::print("  {} done in {:.1f} s{}{}\n", title_, seconds(), note.empty() ? "" : ": ", note);
  std::fflush(stdout);
}

}  // namespace demo
