// What the oneDNN peers share: both spellings of primitive descriptors (2.x has operation descriptors, 3.x has none), and memory.
#pragma once

#include "bench/peers.hpp"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <unordered_map>

namespace everglow::bench {

using dnnl::memory;
using Arguments = std::unordered_map<int, memory>;

inline const dnnl::engine& onednn_engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

template <class Primitive, class... Parts>
typename Primitive::primitive_desc descriptor(const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(onednn_engine(), parts...);
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(parts...), onednn_engine());
#endif
}

/// Of a backward pass, with the descriptor of its forward pass.
template <class Primitive, class Forward, class... Parts>
typename Primitive::primitive_desc backward_descriptor(const Forward& forward, const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(onednn_engine(), parts..., forward);
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(parts...), onednn_engine(), forward);
#endif
}

inline memory::data_type onednn_dtype(DType dtype) {
  if (dtype == DType::f16) return memory::data_type::f16;
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

inline memory wrap(const memory::desc& description, const TensorView& view) { return {description, onednn_engine(), view.data}; }

/// Runs on the calling thread's OpenMP team of that many threads.
inline void execute(const dnnl::primitive& primitive, const Arguments& arguments, int threads) {
  static dnnl::stream stream(onednn_engine());
  omp_set_num_threads(threads);
  primitive.execute(stream, arguments);
  stream.wait();
}

inline void reorder(memory from, memory to, int threads) {
  execute(dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, threads);
}

/// The rows that make() builds for plain and for packed weights; one that oneDNN does not implement is left out.
template <class Make>
std::vector<Row> implemented(const Make& make) {
  std::vector<Row> out;
  for (const bool packed : {false, true}) {
    try {
      out.push_back(make(packed));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  }
  return out;
}

}  // namespace everglow::bench
