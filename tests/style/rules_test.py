# Each rule finds a planted violation, and leaves good code alone.
import unittest

import instruction_sets
import rules
from cpp_text import functions


def found(path, text, rule, **others):
    files = {name.replace('__', '/'): content.splitlines() for name, content in others.items()}
    files[path] = text.splitlines()
    return [what for where, _, what in rules.violations(files, (rule,)) if where == path]


class Includes(unittest.TestCase):
    def test_layers(self):
        for path, name in (('src/core/a.cpp', 'ops/tables.hpp'), ('src/gemm/a.cpp', 'cpu/rows.hpp'), ('src/cpu/a.cpp', 'ops/a.hpp'),
                           ('src/gnmt/a.cpp', 'core/check.hpp'), ('cli/a.cpp', 'core/check.hpp'), ('cli/a.cpp', 'gnmt/model_impl.hpp'),
                           ('bench/a.cpp', 'core/isa.hpp'), ('bench/a.cpp', 'support/tensor.hpp'),
                           ('src/reference/a.cpp', 'cpu/rows.hpp'), ('src/cuda/common/a.cu', 'ops/tables.hpp'),
                           ('src/cuda/sm80/a.cuh', 'cpu/rows.hpp'), ('src/cpu/a.cpp', 'cuda/common/device.hpp')):
            self.assertTrue(found(path, f'#include "{name}"', rules.include_rule), (path, name))
        for path, name in (('src/cuda/common/a.cu', 'gemm/cublaslt.hpp'), ('src/ops/cuda/a.cpp', 'cuda/common/rows.hpp'),
                           ('src/ops/a.cpp', 'core/check.hpp'), ('src/cpu/a.cpp', 'gemm/gemm.hpp'), ('src/gnmt/a.cpp', 'gnmt/a.hpp'),
                           ('bench/a.cpp', 'cases/case.hpp'), ('bench/a.cpp', 'bench/problem.hpp')):
            self.assertFalse(found(path, f'#include "{name}"', rules.include_rule), (path, name))

    def test_parent_folder(self):
        self.assertTrue(found('cli/a.cpp', '#include "../src/core/check.hpp"', rules.include_rule))

    def test_model_in_library(self):
        self.assertTrue(found('src/ops/a.cpp', '#include <everglow/gnmt/model.hpp>', rules.include_rule))
        self.assertFalse(found('cli/a.cpp', '#include <everglow/gnmt/model.hpp>', rules.include_rule))

    def test_third_party(self):
        for path, name in (('src/cpu/a.cpp', 'oneapi/dnnl/dnnl.hpp'), ('src/core/a.cpp', 'fmt/core.h'), ('cli/a.cpp', 'utf8proc.h'),
                           ('src/gnmt/a.cpp', 'CLI/CLI.hpp'), ('bench/a.cpp', 'nlohmann/json.hpp'),
                           ('src/cpu/a.cpp', 'cuda_runtime_api.h'), ('src/cuda/common/a.cpp', 'cublasLt.h'),
                           ('src/ops/a.cpp', 'cuda_fp16.h'), ('src/core/a.hpp', 'cooperative_groups.h'),
                           ('include/everglow/a.hpp', 'cuda_runtime.h'), ('include/everglow/a.hpp', 'omp.h'), ('src/ops/a.cpp', 'gtest/gtest.h')):
            self.assertTrue(found(path, f'#include <{name}>', rules.third_party_rule), (path, name))
        for path, name in (('src/gemm/cublaslt.cpp', 'cublasLt.h'), ('src/cuda/sm80/a.cuh', 'cuda_fp16.h'),
                           ('tests/cuda/a.cpp', 'cuda_runtime_api.h'), ('src/gemm/a.cpp', 'oneapi/dnnl/dnnl.hpp'), ('include/everglow/a.hpp', 'vector'), ('cli/a.cpp', 'fmt/core.h')):
            self.assertFalse(found(path, f'#include <{name}>', rules.third_party_rule), (path, name))

    def test_instruction_set_sources(self):
        path = 'src/cpu/isa/a.cpp'
        self.assertTrue(found(path, '#include <vector>', rules.isa_rule))
        self.assertTrue(found(path, '#include "core/a.hpp"', rules.isa_rule, **{'src__core__a.hpp': '#include <cmath>'}))
        self.assertTrue(found(path, '#include "b.hpp"', rules.isa_rule, **{'src__cpu__isa__b.hpp': '#include <string>'}))
        self.assertFalse(found(path, '#include "core/a.hpp"', rules.isa_rule, **{'src__core__a.hpp': '#include <cstdint>'}))


class Sizes(unittest.TestCase):
    def test_file(self):
        self.assertTrue(found('src/core/a.cpp', '// x\n' * 501, rules.size_rule))
        self.assertFalse(found('src/core/a.cpp', '// x\n' * 500, rules.size_rule))

    def test_function(self):
        def of(lines):
            return 'namespace a {\nclass B {\n int f(int x) const {\n' + ' x += 1;\n' * (lines - 2) + ' }\n};\n}\n'
        self.assertTrue(found('src/core/a.cpp', of(61), rules.function_rule))
        self.assertFalse(found('src/core/a.cpp', of(60), rules.function_rule))
        self.assertFalse(found('src/cpu/isa/a.cpp', of(150), rules.function_rule))
        self.assertFalse(found('src/cuda/common/a.cu', of(150), rules.function_rule))
        self.assertTrue(found('src/cuda/common/a.cpp', of(61), rules.function_rule))
        self.assertTrue(found('src/cpu/isa/a.cpp', of(151), rules.function_rule))

    def test_parameters(self):
        seven = 'void f(int a, int b, int c, int d, std::map<int, int> e, int f, int g) {}'
        self.assertTrue(found('src/core/a.cpp', seven, rules.function_rule))
        self.assertFalse(found('src/core/a.cpp', seven.replace(', int g', ''), rules.function_rule))
        packing = seven.replace('void f', 'void pack_x')
        self.assertTrue(found('src/core/a.cpp', packing, rules.function_rule))
        self.assertFalse(found('src/gemm/a.cpp', packing, rules.function_rule))

    def test_functions_are_found(self):
        text = '''
struct S { int a = 0; explicit S(int b) : a{b} { a += 1; } };
template <class T, class U>
auto made(T t, U u = {}) -> int
  requires(sizeof(T) > 1) {
  if (t) { const char* s = "}{"; /* } */ }
  return [&](int x) { return x; }(3);
}
constexpr int table[] = {1, 2, 3};
const Row row{.name = "x", .run = [](int a) { return a; }};
bool operator()(int a, int b) const noexcept { return a < b; }
'''
        self.assertEqual([(name, first, last, count) for name, first, last, count in functions(text)],
                         [('S', 2, 2, 1), ('made', 3, 8, 2), ('operator()', 11, 11, 2)])


class Contents(unittest.TestCase):
    def test_macro(self):
        self.assertTrue(found('src/core/a.hpp', '#define MAX(a, b) a', rules.macro_rule))
        self.assertFalse(found('src/core/a.hpp', '#define LIMIT (3)', rules.macro_rule))

    def test_unfinished(self):
        for text in ('// TODO: later', 'int x;  // FIXME', '#if 0', '// x = compute(3);', '  // return x;', '// if (x) {'):
            self.assertTrue(found('src/core/a.cpp', text, rules.leftover_rule), text)
        for text in ('// The sum is exact; its error is 0.', '/// y = a b; y may be a;', '// Where (and why) it ends.', '#if 10'):
            self.assertFalse(found('src/core/a.cpp', text, rules.leftover_rule), text)

    def test_head(self):
        self.assertTrue(found('src/core/a.cpp', '#include <vector>', rules.head_rule))
        self.assertTrue(found('src/core/a.cpp', '// x\n' * 7, rules.head_rule))
        self.assertFalse(found('src/core/a.cpp', '// What it holds.\n#include <vector>', rules.head_rule))
        self.assertTrue(found('cmake/a.cmake', 'function(x)', rules.head_rule))

    def test_umbrella(self):
        umbrella, header = 'include/everglow/everglow.hpp', {'include__everglow__new.hpp': ''}
        self.assertTrue(found(umbrella, '// all', rules.umbrella_rule, **header))
        self.assertFalse(found(umbrella, '#include <everglow/new.hpp>', rules.umbrella_rule, **header))

    def test_exports(self):
        header = 'class EVERGLOW_API NewPlan {\n public:\n  void run(const X& x, const Stream& s = {}) const;\n private:\n  int hidden();\n};\n'
        free = 'EVERGLOW_API int fresh(int x);\n'
        named = {'tests__package__consumer__exports.cpp': '&NewPlan::run, &fresh'}
        self.assertEqual(2, len(found('include/everglow/new.hpp', header + free, rules.exports_rule)))
        self.assertFalse(found('include/everglow/new.hpp', header + free, rules.exports_rule, **named))


class InstructionSets(unittest.TestCase):
    SSE = '   0:\taddps  %xmm1,%xmm0'
    AVX = '   0:\tvaddps %xmm1,%xmm2,%xmm0'
    WIDE = '   0:\tvaddps %zmm1,%zmm2,%zmm0'
    PAIRS = '   0:\tvdpbf16ps %zmm0,%zmm30,%zmm4'
    MASK = '   0:\tvaddps %ymm1,%ymm2,%ymm0{%k1}'

    def test_wrong_object(self):
        for kind, text in (('common', self.AVX), ('portable', self.AVX), ('portable', self.WIDE), ('avx2', self.WIDE), ('avx2', self.MASK),
                           ('avx512', self.PAIRS)):
            self.assertTrue(list(instruction_sets.check(kind, text, '')), (kind, text))
        for kind, text in (('common', self.SSE), ('avx2', self.AVX), ('avx512', self.WIDE), ('avx512', self.MASK),
                           ('avx512_bf16', self.PAIRS)):
            self.assertFalse(list(instruction_sets.check(kind, text, '')), (kind, text))

    def test_shared_function(self):
        symbols = '0000000000000000 W float std::abs(float)\n0000000000000010 T f'
        self.assertTrue(list(instruction_sets.check('avx512', '', symbols)))
        self.assertFalse(list(instruction_sets.check('common', '', symbols)))


if __name__ == '__main__':
    unittest.main()
