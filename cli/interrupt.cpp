// The signal handler does nothing but set the flag. A signal that the parent had ignored, as nohup does, stays ignored.
#include "cli/interrupt.hpp"

#include <csignal>

namespace everglow::cli {
namespace {

constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t signal_that_came = 0;

void note(int signal) {
  signal_that_came = signal;
  std::signal(signal, SIG_DFL);  // a second one ends the program
}

}  // namespace

Interrupt::Interrupt() {
  signal_that_came = 0;
  for (const int signal : signals)
    if (std::signal(signal, note) == SIG_IGN) std::signal(signal, SIG_IGN);
}

Interrupt::~Interrupt() {
  for (const int signal : signals)
    if (std::signal(signal, SIG_DFL) == SIG_IGN) std::signal(signal, SIG_IGN);
}

bool Interrupt::came() { return signal_that_came != 0; }
int Interrupt::status() { return signal_that_came == 0 ? 0 : 128 + signal_that_came; }

}  // namespace everglow::cli
