// How the tool's threads wait for one another.
#pragma once

namespace everglow::cli {

/// Starts the tool anew with a bound on how long OpenMP's threads spin before they sleep, where the environment sets none. By default
/// GCC's runtime spins for milliseconds, so that two processes of two threads on two cores ran 6 to 70 times as long as either alone;
/// with the bound they take two to three times as long (two is their share), and one alone is as fast as before, within 5 %.
void bound_waits(char** arguments);

}  // namespace everglow::cli
