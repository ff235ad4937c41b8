// Training steps of the CPU: types of 16 bits, the loss scale, and steps told in one call.
#include "gnmt/model_steps.hpp"

namespace everglow::gnmt {
namespace {

class ModelSteps : public testing::TestWithParam<DType> {};

TEST_P(ModelSteps, OneCallGivesTheBitsOfThree) { test::check_steps_ahead(Device::cpu(), GetParam()); }
TEST_P(ModelSteps, GoOnWithTheSameBits) { test::check_resume(Device::cpu(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Types, ModelSteps, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(ModelSteps, OverflowSkipsAStepAndItsPlaceInTheSchedule) { test::check_overflow(Device::cpu()); }

}  // namespace
}  // namespace everglow::gnmt
