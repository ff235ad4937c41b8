// Enumerates the schemes of an odd product and keeps the fastest.
#include "plan/odd.hpp"

#include <algorithm>
#include <vector>

namespace everglow::plan {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

/// Predictions of a few sizes, each made once.
class Products {
 public:
  explicit Products(const Machine& machine) : machine_(machine) {}
  double time_us(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t alignment) {
    for (const Known& one : known_)
      if (one.product.m == n && one.product.n == m && one.product.k == k && one.product.alignment == alignment) return one.time_us;
    const Product product{n, m, k, alignment};  // the library counts columns first
    known_.push_back({product, predict(machine_, product).time_us});
    return known_.back().time_us;
  }

 private:
  struct Known {
    Product product;
    double time_us;
  };
  const Machine& machine_;
  std::vector<Known> known_;
};

class Search {
 public:
  Search(const Machine& machine, const OddProduct& product)
      : machine_(machine), p_(product), unit_(unit_of(machine.element)), products_(machine) {}

  bool whole() const {
    return p_.a.aligned() && p_.b.aligned() && p_.c.aligned() && p_.n % unit_ == 0 && (!k_along() || p_.k % unit_ == 0) &&
           (p_.a_along_k || p_.m % unit_ == 0);
  }
  OddScheme given() {
    OddScheme out{.m = p_.m, .n = p_.n, .k = p_.k};
    std::int64_t alignment = std::min({p_.a.alignment, p_.b.alignment, p_.c.alignment, alignment_of(p_.n * machine_.element)});
    if (k_along()) alignment = std::min(alignment, alignment_of(p_.k * machine_.element));
    if (!p_.a_along_k) alignment = std::min(alignment, alignment_of(p_.m * machine_.element));
    out.time_us = products_.time_us(p_.m, p_.n, p_.k, alignment);
    return out;
  }
  OddScheme best() {
    best_ = given();
    for (const bool stage_a : {false, true})
      for (const bool stage_b : {false, true})
        for (const bool stage_c : {false, true})
          if (possible(p_.a, stage_a) && possible(p_.b, stage_b) && (stage_c ? p_.c.may_stage : true))
            with({.stage_a = stage_a, .stage_b = stage_b, .stage_c = stage_c, .as_is = false});
    return best_;
  }

 private:
  bool k_along() const { return p_.a_along_k || !p_.b_along_n; }
  static bool possible(const OddOperand& o, bool stage) { return stage ? o.may_stage && !o.filled : o.aligned(); }
  std::int64_t down(std::int64_t size) const { return size / unit_ * unit_; }
  std::int64_t up(std::int64_t size) const { return down(size + unit_ - 1); }

  void with(OddScheme s) {
    const bool a_filled = s.stage_a || p_.a.filled, b_filled = s.stage_b || p_.b.filled;
    s.k = p_.k;
    if (k_along() && p_.k % unit_ != 0) {
      s.widen = !(a_filled && b_filled);
      if (s.widen && (!p_.may_widen || s.stage_c || p_.accumulate)) return;
      s.k = s.widen ? down(p_.k) : up(p_.k);
    }
    if (!s.stage_c && !s.widen && !p_.c.aligned()) return;
    const bool room = s.stage_c || s.widen;
    for (const std::int64_t n : {up(p_.n), down(p_.n)}) {
      if (n > p_.n && !(b_filled && room)) continue;
      for (const std::int64_t m : {p_.a_along_k ? p_.m : up(p_.m), p_.a_along_k ? p_.m : down(p_.m)}) {
        if (m > p_.m ? !(a_filled && room) : m < p_.m && !p_.leaves_rows) continue;
        // A rest of k and one of columns or rows together would be two more passes over the operands.
        if (s.widen && (n < p_.n || m < p_.m)) continue;
        s.n = n, s.m = m;
        if (s.m > 0 && s.n > 0 && s.k > 0) consider(s);
      }
    }
  }

  void consider(OddScheme s) {
    const double element = real(machine_.element), a = element * real(p_.m) * real(p_.k), b = element * real(p_.k) * real(p_.n);
    const double elements = real(p_.m) * real(p_.n), c = real(p_.c_element) * elements;
    const double moved = machine_.copy;
    s.time_us = products_.time_us(s.m, s.n, s.k, 128);
    const bool columns = s.n < p_.n, rows = s.m < p_.m;
    if (s.stage_a || s.stage_b || columns || rows) s.time_us += machine_.overhead_us;  // one launch before the product
    s.time_us += 2 * (s.stage_a * a + s.stage_b * b) / moved;
    // Sums of a rest are taken to move half of what a copy moves.
    s.time_us += 2 * (columns * a + rows * b) / moved;
    if (s.stage_c) s.time_us += machine_.overhead_us + (p_.accumulate ? 3 : 2) * c / moved;
    if (s.widen) s.time_us += machine_.overhead_us + (2 * 4 * elements + c) / moved;  // written and read beside the product
    if (s.time_us < best_.time_us) best_ = s;
  }

  const Machine& machine_;
  const OddProduct& p_;
  std::int64_t unit_;
  Products products_;
  OddScheme best_;
};

}  // namespace

OddScheme choose_odd(const Machine& machine, const OddProduct& product) {
  Search search(machine, product);
  if (!machine.tensor || product.m == 0 || product.n == 0 || product.k == 0 || search.whole())
    return {.m = product.m, .n = product.n, .k = product.k};
  return search.best();
}

}  // namespace everglow::plan
