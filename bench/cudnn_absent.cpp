// Stands in for cuDNN's recurrent layers where the toolkit has no headers of cuDNN.
#include "bench/cuda/peers.hpp"

namespace everglow::bench {

std::string cudnn_fault() { return "cuDNN's headers (cudnn_adv.h) were not beside the toolkit's when this program was built"; }

std::vector<Row> cudnn_recurrent(const RecurrentDescription&, const RecurrentSizes&, const std::shared_ptr<const RecurrentTensors>&,
                                 const Settings&) {
  return {};
}

}  // namespace everglow::bench
