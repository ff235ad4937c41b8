# The rules that sources keep: who may include whom, budgets of size, and what a file must and must not hold.
# Usage: rules.py ROOT. Prints each violation as file:line: text and exits with 1 where there is one.
import os
import re
import sys

from cpp_text import functions

CPP = ('.cpp', '.hpp', '.cu', '.cuh')
OTHER = ('.py', '.sh', '.cmake')
FOLDERS = ('include', 'src', 'cli', 'cases', 'tests', 'bench', 'examples', 'python', 'cmake', 'scripts')

# Who may include whom, by folder below src (a folder may always include itself).
MAY_INCLUDE = {
    'core': set(),
    'plan': {'core'},
    'gemm': {'core', 'plan'},
    'cpu': {'core', 'plan', 'gemm'},
    'cuda': {'core', 'plan', 'gemm'},
    'reference': {'core', 'plan', 'gemm'},
    'ops': {'core', 'plan', 'gemm', 'cpu', 'cuda', 'reference'},
    'gnmt': set(),
    'cli': {'cases', 'bench'},
    'bench': {'cases'},
    'cases': {'core'},
}
# Third-party headers and the only folders that may include them.
THIRD_PARTY = {
    r'(oneapi/)?dnnl': ('src/gemm/', 'bench/'),
    r'cublas': ('src/gemm/', 'bench/cuda/'),
    r'cudnn': ('bench/cuda/',),
    r'cuda(_\w+)?\.h|cuda_|cooperative_groups|mma\.h|cub/|cute/|cutlass': ('src/cuda/', 'src/gemm/cublaslt', 'bench/cuda/', 'tests/cuda/'),
    r'nlohmann/|fmt/': ('src/gnmt/', 'cli/', 'tests/'),
    r'sentencepiece|utf8proc': ('src/gnmt/', 'tests/gnmt/'),
    r'CLI/': ('cli/',),
    r'gtest/|gmock/': ('tests/',),
}
STANDARD = set('''algorithm any array atomic barrier bit bitset charconv chrono cinttypes climits cmath compare complex concepts
condition_variable coroutine csignal cstddef cstdint cstdio cstdlib cstring ctime deque exception execution filesystem forward_list
fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set
shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view strstream syncstream
system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
cassert cctype cerrno cfenv cfloat cstdarg'''.split())
ISA_HEADERS = {'cstddef', 'cstdint', 'everglow/storage.hpp'}

GNMT_USERS = ('include/everglow/gnmt/', 'src/gnmt/', 'cli/', 'tests/', 'bench/', 'examples/')

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
MACRO = re.compile(r'^\s*#\s*define\s+(\w+)\(')
UNFINISHED = re.compile(r'\b(TODO|FIXME|XXX|HACK)\b')
CODE = re.compile(r'^\s*//(?!/)\s*(?:[\w:<>,&*\s.\[\]\->]+(?:\(.*\)|=[^=].*);|'
                  r'(?:if|for|while|switch) \(.*\) ?\{?|\}|else \{|return\b.*;)\s*$')

# Products and their packing take their arguments one by one, in the order of BLAS.
BLAS_LIKE = re.compile(r'pack_\w+|gemm_packed')

MAX_LINES, MAX_FUNCTION, MAX_KERNEL, MAX_PARAMETERS, MAX_HEAD = 500, 60, 150, 6, 6


def is_kernel_file(path):
    return bool(re.match(r'src/[^/]+/isa/|src/cuda/.*\.cuh?$', path))


def includes(lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def module_of(path):
    parts = path.split('/')
    return parts[1] if parts[0] == 'src' else parts[0]


def include_rule(path, lines, _files):
    module = module_of(path)
    for number, quoted, name in includes(lines):
        if '..' in name.split('/'):
            yield number, f'includes "{name}" through a parent folder'
        if quoted and '/' in name and module in MAY_INCLUDE:
            other = name.split('/')[0]
            if other != module and other not in MAY_INCLUDE[module]:
                yield number, f'{module} may not include {other} ("{name}")'
        if name.startswith('everglow/gnmt/') and not path.startswith(GNMT_USERS):
            yield number, f'the library may not include the translation model (<{name}>)'


def third_party_rule(path, lines, _files):
    public = path.startswith('include/')
    for number, _, name in includes(lines):
        for pattern, folders in THIRD_PARTY.items():
            if re.match(pattern, name) and not path.startswith(folders):
                yield number, f'only {", ".join(folders)} may include <{name}>'
        if public and not name.startswith('everglow/') and name not in STANDARD:
            yield number, f'a public header includes only everglow and the standard library, not <{name}>'


def isa_rule(path, lines, files):
    """Code compiled for an instruction set shares no inline function with other code: see the closure of its includes."""
    if not re.match(r'src/[^/]+/isa/', path):
        return
    seen, todo = set(), [(path, number, quoted, name) for number, quoted, name in includes(lines)]
    while todo:
        via, number, quoted, name = todo.pop()
        if not quoted and name not in ISA_HEADERS:
            yield number, f'includes <{name}> through {via}: allowed are {", ".join(sorted(ISA_HEADERS))}'
        target = f'src/{name}'
        if quoted and target not in files:
            target = f'{os.path.dirname(via)}/{name}'
        if quoted and target in files and target not in seen:
            seen.add(target)
            todo += [(target, number, q, n) for _, q, n in includes(files[target])]


def size_rule(path, lines, _files):
    if len(lines) > MAX_LINES:
        yield len(lines), f'{len(lines)} lines, at most {MAX_LINES}'


def function_rule(path, lines, _files):
    if not path.endswith(CPP):
        return
    limit = MAX_KERNEL if is_kernel_file(path) else MAX_FUNCTION
    for name, first, last, parameters in functions('\n'.join(lines)):
        if last - first + 1 > limit:
            yield first, f'{name} has {last - first + 1} lines, at most {limit}'
        if parameters > MAX_PARAMETERS and not (path.startswith('src/gemm/') and BLAS_LIKE.fullmatch(name)):
            yield first, f'{name} has {parameters} parameters, at most {MAX_PARAMETERS}: use a struct'


def macro_rule(path, lines, _files):
    for number, line in enumerate(lines, 1):
        match = MACRO.match(line)
        if match and path.endswith(CPP):
            yield number, f'function-like macro {match.group(1)}'


def leftover_rule(path, lines, _files):
    for number, line in enumerate(lines, 1):
        match = UNFINISHED.search(line)
        if match and not path.startswith('tests/style/'):
            yield number, f'{match.group(1)}: finish it or leave it out'
        if path.endswith(CPP) and (CODE.match(line) or re.match(r'^\s*#\s*if\s+0\b', line)):
            yield number, 'looks like commented-out code'


def head_rule(path, lines, _files):
    mark = '//' if path.endswith(CPP) else '#'
    head = 0
    while head < len(lines) and lines[head].startswith(mark) and not INCLUDE.match(lines[head]):
        head += 1
    if head == 0:
        yield 1, 'does not open with a comment that says what it holds'
    if path.endswith(CPP) and head > MAX_HEAD:
        yield head, f'opens with {head} lines of comment, at most {MAX_HEAD}'


def umbrella_rule(path, lines, files):
    if path != 'include/everglow/everglow.hpp':
        return
    named = {name for _, _, name in includes(lines)}
    for header in sorted(files):
        if re.fullmatch(r'include/everglow/\w+\.hpp', header) and not header.endswith(('/everglow.hpp', '/export.hpp')):
            if header[len('include/'):] not in named:
                yield 1, f'does not include {header}'


def exports_rule(path, lines, files):
    """The consumer of the package tests names every exported function, so that a hidden one fails its link."""
    consumer = '\n'.join(files.get('tests/package/consumer/exports.cpp', []))
    if not re.fullmatch(r'include/everglow/\w+\.hpp', path):
        return
    owner = None
    for number, line in enumerate(lines, 1):
        opened = re.match(r'(?:class|struct) EVERGLOW_API (\w+)', line)
        owner = opened.group(1) if opened else None if line.startswith(('};', ' private:')) else owner
        function = re.match(r'\s*EVERGLOW_API [\w:<>&\s]*?(\w+)\(', line)
        method = re.match(r'  (?!return|if)[\w:<>&]+[\w:<>&\s]*?[\s&](\w+)\(', line) if owner and owner.endswith('Plan') else None
        if function and not re.search(rf'&(?:\w+::)?{function.group(1)}\b', consumer):
            yield number, f'{function.group(1)} is not named in tests/package/consumer/exports.cpp'
        if method and not re.search(rf'&{owner}::{method.group(1)}\b', consumer):
            yield number, f'{owner}::{method.group(1)} is not named in tests/package/consumer/exports.cpp'


RULES = (include_rule, third_party_rule, isa_rule, size_rule, function_rule, macro_rule, leftover_rule, head_rule, umbrella_rule,
         exports_rule)


def violations(files, rules=RULES):
    """files: {path below the root: lines}. Returns (path, line, text), in order."""
    found = []
    for path, lines in sorted(files.items()):
        for rule in rules:
            found += [(path, number, text) for number, text in rule(path, lines, files)]
    return found


def read_tree(root):
    files = {}
    names = [name for name in ('CMakeLists.txt', 'demo', 'test', '.ci/run') if os.path.exists(os.path.join(root, name))]
    for folder in FOLDERS:
        for where, _, here in os.walk(os.path.join(root, folder)):
            names += [os.path.relpath(os.path.join(where, name), root) for name in here
                      if name.endswith(CPP + OTHER) or name == 'CMakeLists.txt']
    for name in names:
        with open(os.path.join(root, name), encoding='utf-8') as file:
            files[name.replace(os.sep, '/')] = file.read().splitlines()
    return files


def main():
    files = read_tree(sys.argv[1])
    found = violations(files)
    for path, number, text in found:
        print(f'{path}:{number}: {text}')
    print(f'{len(files)} files, {len(found)} violations')
    return 1 if found or len(files) < 50 else 0


if __name__ == '__main__':
    sys.exit(main())
