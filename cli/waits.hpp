// How the tool's threads wait for one another.
#pragma once

namespace everglow::cli {

/// Starts the tool anew with a bound on how long OpenMP's threads spin before they sleep, where the environment sets none. By
/// default GCC's runtime spins for milliseconds, so that two processes of two threads on two cores wait for one another's spinning
/// threads.
void bound_waits(char** arguments);

}  // namespace everglow::cli
