# The two demos: `everglow demo` works in a folder of its own that it removes, and the script ./demo gives each text of the user its
# own folder of checkpoints.
# Usage: demo_test.py TOOL
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def temporary_folder(folder):
    """A folder that bears the number of the demo's process, as an older run may have left it, is neither used nor removed."""
    def leave_a_folder():
        os.mkdir(os.path.join(folder, f'everglow-demo-{os.getpid()}'))

    environment = {**os.environ, 'TMPDIR': folder}
    command = [TOOL, 'demo', '--steps', '100000']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding='utf-8', env=environment,
                          preexec_fn=leave_a_folder) as process:
        left = f'everglow-demo-{process.pid}'
        for line in process.stdout:
            if line.startswith('epoch'):
                check(len(os.listdir(folder)) == 2, 'a folder of its own', os.listdir(folder))
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
        check(process.wait(timeout=120) == 128 + signal.SIGTERM, process.returncode, rest)
    check(os.listdir(folder) == [left] and not os.listdir(os.path.join(folder, left)), os.listdir(folder))


def missing_folder(folder):
    wish = os.path.join(folder, 'none')
    result = subprocess.run([TOOL, 'demo'], capture_output=True, text=True, timeout=60, env={**os.environ, 'TMPDIR': wish})
    check(result.returncode == 1 and not result.stdout, result.returncode, result.stdout)
    expected = f'everglow: [demo] TMPDIR: expected a folder, got "{wish}" ('
    check(result.stderr.startswith(expected) and len(result.stderr.splitlines()) == 1, result.stderr)


def folders_of_texts(folder):
    """./demo with its build replaced by nothing and the tool by an echo of the arguments."""
    os.makedirs(os.path.join(folder, 'scripts'))
    os.makedirs(os.path.join(folder, 'build', 'cpu'))
    shutil.copy(ROOT / 'demo', folder)
    with open(os.path.join(folder, 'scripts', 'setup.sh'), 'w', encoding='utf-8') as setup:
        setup.write('install_missing() { :; }\nconfigure() { :; }\nbuild_preset() { :; }\nsay() { :; }\nfail() { exit 3; }\n'
                    'has_cuda_toolkit() { false; }\n')
    tool = os.path.join(folder, 'build', 'cpu', 'everglow')
    with open(tool, 'w', encoding='utf-8') as script:
        script.write('#!/bin/sh\necho "$*"\n')
    os.chmod(tool, 0o755)

    def called(*arguments):
        result = subprocess.run([os.path.join(folder, 'demo'), *arguments], capture_output=True, text=True, timeout=60)
        check(result.returncode == 0, arguments, result.returncode, result.stderr)
        return result.stdout.split()

    first = called('--train', 'a.tsv', '--steps', '5')
    check(first[:6] == ['train', '--train', 'a.tsv', '--steps', '5', '--out'] and first[6].startswith('build/demo-model'), first)
    check(called('--steps', '9', '--train', 'a.tsv')[-1] == first[-1], 'the same text, the same folder')
    check(called('--train=a.tsv')[-1] == first[-1], 'the same text, written with =')
    others = [called('--train', 'b.tsv')[-1], called('--train-source', 'a.en', '--train-target', 'a.fr')[-1],
              called('--train-source=a.en', '--train-target=a.de')[-1]]
    check(len({first[-1], *others}) == 4, 'another text, another folder', first[-1], others)
    check(called('--train', 'a.tsv', '--out', 'mine') == ['train', '--train', 'a.tsv', '--out', 'mine'], 'the folder that is given')
    check(called('--seed', '2') == ['demo', '--seed', '2'], 'the built-in corpus')


with tempfile.TemporaryDirectory() as temporary:
    folders_of_texts(os.path.join(temporary, 'script'))
    os.mkdir(os.path.join(temporary, 'demo'))
    temporary_folder(os.path.join(temporary, 'demo'))
    missing_folder(temporary)
