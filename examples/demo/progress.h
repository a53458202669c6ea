// What the demo shows while it works: a bar in a terminal, a line now and then in a file or pipe.
#pragma once

#include <chrono>
#include <string>

namespace demo {

/// Standard output: is it a terminal, may it show more than ASCII, and how wide is it.
struct Console {
  bool terminal = false, unicode = false;
  int width = 100;
  static Console detect();
};

class Progress {
 public:
  /// `lines`: without a terminal, print a line at each tenth of the way.
  Progress(const Console& console, std::string title, int total, bool lines = true);
  /// Redraws at most ten times a second.
  void update(int done, const std::string& note);
  /// A line that stays.
  void print(const std::string& line);
  /// Removes the bar and prints how long it took.
  void finish(const std::string& note);

 private:
  using Clock = std::chrono::steady_clock;
  void draw();
  void clear();
  double seconds() const;

  Console console_;
  std::string title_, note_;
  bool lines_;
  int total_, done_ = 0, tenths_ = 0;
  Clock::time_point start_ = Clock::now(), drawn_{};
};

}  // namespace demo
