// The tensors and comparisons that the tests share with the proofs of the cases.
#pragma once

#include "cases/proof/tensor.hpp"

namespace everglow::test {

using proof::compare;
using proof::gathered;
using proof::HostTensor;
using proof::read_element;
using proof::scattered;
using proof::Scratch;
using proof::seed;
using proof::unit_roundoff;
using proof::write_element;

}  // namespace everglow::test
