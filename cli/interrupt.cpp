// The signal handler does nothing but set the flag.
#include "cli/interrupt.hpp"

#include <csignal>

namespace everglow::cli {
namespace {

volatile std::sig_atomic_t signal_that_came = 0;

void note(int signal) {
  signal_that_came = signal;
  std::signal(signal, SIG_DFL);  // a second one ends the program
}

}  // namespace

Interrupt::Interrupt() {
  signal_that_came = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interrupt::came() { return signal_that_came != 0; }
int Interrupt::status() { return signal_that_came == 0 ? 0 : 128 + signal_that_came; }

}  // namespace everglow::cli
