// A signal may come at any time: while oneDNN multiplies, the stack register must point into the stack of its thread, or the frame
// of the handler overwrites the heap. The handler here has a stack of its own, so that it can look without doing harm.
#include "gemm/gemm.hpp"
#include "gemm/onednn.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <thread>
#include <vector>

namespace everglow {
namespace {

#ifdef __x86_64__

std::atomic<std::uintptr_t> stack_begin, stack_end;
std::atomic<int> seen, strayed;

void look(int, siginfo_t*, void* context) {
  const auto at = static_cast<std::uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  if (at < stack_begin || at > stack_end) ++strayed;
  ++seen;
}

/// While it lives, this thread is interrupted all the time.
class Interruptions {
 public:
  Interruptions() : alternate_(std::size_t{1} << 16) {
    pthread_attr_t attributes;
    void* begin = nullptr;
    std::size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
    stack_begin = reinterpret_cast<std::uintptr_t>(begin), stack_end = stack_begin + bytes;
    seen = 0, strayed = 0;
    const stack_t stack{.ss_sp = alternate_.data(), .ss_flags = 0, .ss_size = alternate_.size()};
    sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, &before_);
    sender_ = std::thread([this, target = pthread_self()] {
      while (!done_) {
        pthread_kill(target, SIGPROF);
        usleep(50);
      }
    });
  }
  ~Interruptions() {
    done_ = true;
    sender_.join();
    sigaction(SIGPROF, &before_, nullptr);
    const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

 private:
  std::vector<char> alternate_;
  struct sigaction before_ {};
  std::atomic<bool> done_ = false;
  std::thread sender_;
};

struct Shape {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  std::int64_t gap = 0;
};

// The products of a classifier and deep weight gradients. oneDNN 2.6 takes its older kernels for rows with gaps between them.
constexpr Shape shapes[] = {{256, 256, 147, false, false, false, 13}, {256, 147, 256, false, true, false, 1},
                            {512, 128, 1776, true, false, false, 16}, {512, 128, 1776, true, false, true, 16},
                            {147, 256, 256, true, false, true, 3},    {256, 256, 147}};

TEST(GemmSignals, TheStackStaysTheStack) {
  if (!has_onednn()) GTEST_SKIP() << "built without oneDNN";
  constexpr int enough = 200;  // most of them fall into the product itself
  for (const DType type : {DType::f32, DType::bf16})
    for (const Shape& s : shapes) {
      SCOPED_TRACE(testing::Message() << name(type) << ' ' << s.m << " x " << s.n << " x " << s.k);
      const std::int64_t lda = (s.transpose_a ? s.m : s.k) + s.gap, ldb = (s.transpose_b ? s.k : s.n) + s.gap, ldc = s.n + s.gap;
      const auto bytes_of = [type](std::int64_t rows, std::int64_t stride) {
        return static_cast<std::size_t>(rows * stride) * size_of(type);
      };
      const std::vector<std::byte> a(bytes_of(s.transpose_a ? s.k : s.m, lda)), b(bytes_of(s.transpose_b ? s.n : s.k, ldb));
      std::vector<float> c(static_cast<std::size_t>(s.m * ldc));
      const Gemm product{.transpose_a = s.transpose_a,
                         .transpose_b = s.transpose_b,
                         .m = s.m,
                         .n = s.n,
                         .k = s.k,
                         .a = a.data(),
                         .lda = lda,
                         .b = b.data(),
                         .ldb = ldb,
                         .c = c.data(),
                         .ldc = ldc,
                         .accumulate = s.accumulate,
                         .a_type = type,
                         .b_type = type};
      const Interruptions interruptions;
      while (seen < enough) gemm(product, {.threads = 1, .isa = best_isa(), .library = true});
      EXPECT_EQ(strayed, 0) << "of " << seen << " signals";
    }
}

#endif

}  // namespace
}  // namespace everglow
