// Everything: the layers, what a trainer needs beside them, and the runtime.
#pragma once

#include <everglow/attention.hpp>
#include <everglow/device.hpp>
#include <everglow/embedding.hpp>
#include <everglow/error.hpp>
#include <everglow/linear.hpp>
#include <everglow/loss.hpp>
#include <everglow/optimizer.hpp>
#include <everglow/plan.hpp>
#include <everglow/pointwise.hpp>
#include <everglow/recurrent.hpp>
#include <everglow/runtime.hpp>
#include <everglow/softmax.hpp>
#include <everglow/storage.hpp>
#include <everglow/tensor.hpp>
