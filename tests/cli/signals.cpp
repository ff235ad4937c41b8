// Loaded before a program (LD_PRELOAD), it interrupts it 2,000 times in each second of its work, as profilers do; nothing else
// changes.
#include <sys/time.h>

#include <csignal>

namespace {

void nothing(int) {}

const int started = [] {
  struct sigaction action {};
  action.sa_handler = nothing;
  action.sa_flags = SA_RESTART;
  constexpr int microseconds = 500;
  const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = microseconds}, .it_value = {.tv_sec = 0, .tv_usec = microseconds}};
  return sigaction(SIGPROF, &action, nullptr) + setitimer(ITIMER_PROF, &often, nullptr);
}();

}  // namespace
