// Turns SIGINT and SIGTERM into a flag that a training run asks for, so that it saves before it ends.
#pragma once

namespace everglow::cli {

/// While one lives, the first of these signals sets the flag and the second ends the program as usual.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  static bool came();
  static int status();  ///< 128 + the signal, as a shell reports it
};

}  // namespace everglow::cli
