# Runs the tests of a layer once for each mutant of its sources (src/core/mutant.hpp) and fails where one survives: something wrong that
# no test notices. Usage: mutants.py TEST_PROGRAM SOURCES [NAME-PART], with the program everglow_mutant_tests.
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

MUTANT = re.compile(r'\b(?:mutant|flipped|dropped)\(\s*"([^"]*)"')
NAME = re.compile(r'[a-z]+\.[a-z0-9_]+')
LEAST = 30
# The tests of each layer, which a mutant's name begins with: the proofs of its cases first, which find most, then the rest. A stored
# vector or a bad call is for what these cannot know.
TESTS = {layer: (f'{layer.capitalize()}/EveryRow*', f'*{layer.capitalize()}*:-{layer.capitalize()}/EveryRow*:BadCalls.*:Torch*:Jax*')
         for layer in ('linear', 'recurrent', 'attention', 'softmax', 'embedding', 'loss', 'pointwise', 'adam')}


def find_mutants(folder):
    """Pairs of a name and the path below the folder."""
    return [(name, path.relative_to(folder)) for path in sorted(pathlib.Path(folder).rglob('*.[ch]pp')) if path.stem != 'mutant'
            for name in MUTANT.findall(path.read_text(encoding='utf-8'))]


def faults(mutants):
    """What is wrong with the names."""
    names = [name for name, _ in mutants]
    for name, path in mutants:
        if not NAME.fullmatch(name) or name.split('.')[0] not in TESTS:
            yield f'{path}: "{name}" is not "layer.what_is_wrong"'
        if names.count(name) > 1:
            yield f'{path}: "{name}" is not the only mutant of that name'


def passes(program, layer, name):
    """Whether the tests of a layer pass with a mutant; '' is none. A crash and a hang do not."""
    # The mutants stand in the portable kernels, which every processor runs.
    environment = {**os.environ, 'EVERGLOW_MUTANT': name, 'EVERGLOW_ISA': 'portable', 'OMP_WAIT_POLICY': 'passive'}
    for tests in TESTS[layer]:
        command = [program, f'--gtest_filter={tests}', '--gtest_brief=1', '--gtest_fail_fast']
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode != 0:
            return False
    return True


def main():
    program, folder, part = (*sys.argv[1:], '')[:3]
    everyone = find_mutants(folder)
    wrong = list(faults(everyone))
    if wrong or len(everyone) < LEAST:
        sys.exit('\n'.join(wrong) or f'expected at least {LEAST} mutants, got {len(everyone)}')
    mutants = [(name, path) for name, path in everyone if part in name]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        layers = sorted({name.split('.')[0] for name, _ in mutants})
        healthy = list(pool.map(lambda layer: passes(program, layer, ''), layers))
        if not all(healthy):
            sys.exit('fail without a mutant: ' + ', '.join(layer for layer, good in zip(layers, healthy) if not good))
        survived = list(pool.map(lambda mutant: passes(program, mutant[0].split('.')[0], mutant[0]), mutants))
    for (name, path), alive in zip(mutants, survived):
        print(f'{"SURVIVED" if alive else "noticed "} {name} {path}')
    print(f'{len(mutants)} mutants, {sum(survived)} survived')
    return 1 if any(survived) else 0


if __name__ == '__main__':
    sys.exit(main())
