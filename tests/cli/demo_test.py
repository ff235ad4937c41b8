# The two demos: `everglow demo` works in a folder of its own that it removes, and the script ./demo runs where it is called, and
# gives each text of the user its own folder of checkpoints.
# Usage: demo_test.py TOOL
import json
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


class Script:
    """./demo in a folder of its own, its build replaced by a note and the tool by an echo of its folder and its arguments."""

    def __init__(self, folder):
        self.root = os.path.realpath(os.path.join(folder, 'project'))
        self.caller = os.path.realpath(os.path.join(folder, 'texts'))
        for made in (os.path.join(self.root, 'scripts'), os.path.join(self.root, 'build', 'cpu'), self.caller):
            os.makedirs(made)
        shutil.copy(ROOT / 'demo', self.root)
        self.write(os.path.join(self.root, 'scripts', 'setup.sh'),
                   'install_missing() { :; }\nconfigure() { echo "$*" >configured; }\nbuild_preset() { :; }\nsay() { :; }\n'
                   'fail() { echo "$*" >&2; exit 3; }\nhas_cuda_toolkit() { false; }\n')
        tool = os.path.join(self.root, 'build', 'cpu', 'everglow')
        self.write(tool, '#!/bin/sh\necho "$PWD" "$*"\n')
        os.chmod(tool, 0o755)
        for name in ('a.tsv', 'b.tsv', 'a.en', 'a.fr', 'a.de'):
            self.write(os.path.join(self.caller, name), '')

    @staticmethod
    def write(path, text):
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)

    def run(self, *arguments, folder=None):
        return subprocess.run([os.path.join(self.root, 'demo'), *arguments], capture_output=True, text=True, timeout=60,
                              cwd=folder or self.caller)

    def __call__(self, *arguments, folder=None):
        result = self.run(*arguments, folder=folder)
        check(result.returncode == 0, arguments, result.returncode, result.stderr)
        where, *came = result.stdout.split()
        check(where == (folder or self.caller), 'the tool runs where the caller is', where)
        return came

    def configured(self):
        with open(os.path.join(self.root, 'configured'), encoding='utf-8') as file:
            return file.read().strip()


def folders_of_texts(script):
    first = script('--train', 'a.tsv', '--steps', '5')
    check(first[:6] == ['train', '--train', 'a.tsv', '--steps', '5', '--out'], first)
    check(first[6].startswith(os.path.join(script.root, 'build', 'demo-model')), first)
    check(script('--steps', '9', '--train', 'a.tsv')[-1] == first[-1], 'the same text, the same folder')
    check(script('--train=a.tsv')[-1] == first[-1], 'the same text, written with =')
    check(script('--train', os.path.join(script.caller, 'a.tsv'), folder=script.root)[-1] == first[-1], 'from another folder')
    others = [script('--train', 'b.tsv')[-1], script('--train-source', 'a.en', '--train-target', 'a.fr')[-1],
              script('--train-source=a.en', '--train-target=a.de')[-1]]
    check(len({first[-1], *others}) == 4, 'another text, another folder', first[-1], others)
    check(script('--train', 'a.tsv', '--out', 'mine') == ['train', '--train', 'a.tsv', '--out', 'mine'], 'the folder that is given')
    check(script('--seed', '2') == ['demo', '--seed', '2'], 'the built-in corpus')


def missing_texts(script):
    """They are missed before anything is built."""
    for arguments in (('--train', 'none.tsv'), ('--train=none.tsv',), ('--train-source', 'a.en', '--train-target', 'none.tsv')):
        os.remove(os.path.join(script.root, 'configured'))
        result = script.run(*arguments)
        check(result.returncode == 3 and 'cannot read "none.tsv"' in result.stderr, arguments, result.returncode, result.stderr)
        check(arguments[-2:][0].split('=')[0] in result.stderr, 'the option', result.stderr)
        check(not os.path.exists(os.path.join(script.root, 'configured')), 'nothing is built')
        script()


def card(script):
    """Where a toolkit and a card are, the demo trains there, unless the caller chose a device."""
    setup = os.path.join(script.root, 'scripts', 'setup.sh')
    with open(setup, encoding='utf-8') as file:
        before = file.read()
    script.write(setup, before + 'has_cuda_toolkit() { :; }\nhas_cuda_card() { :; }\n')
    shutil.copytree(os.path.join(script.root, 'build', 'cpu'), os.path.join(script.root, 'build', 'cuda'))
    check(script() == ['demo', '--device', 'cuda:0'], 'the built-in corpus on the card')
    own = ['train', '--train', 'a.tsv', '--out', 'mine']
    check(script(*own[1:]) == own + ['--device', 'cuda:0'], 'a text on the card')
    check(script('--device', 'cpu') == ['demo', '--device', 'cpu'], 'the device that is given')
    script.write(setup, before)


def tests_of_the_build(script):
    """The demo builds no tests, keeps those of a folder that has them, and leaves the presets with them."""
    cache = os.path.join(script.root, 'build', 'cpu', 'CMakeCache.txt')
    for text, expected in ((None, 'OFF'), ('EVERGLOW_TESTS:BOOL=OFF\n', 'OFF'), ('EVERGLOW_TESTS:BOOL=ON\n', 'ON')):
        if text:
            script.write(cache, text)
        script()
        check(script.configured() == f'cpu -DEVERGLOW_TESTS={expected}', text, script.configured())
    presets = json.loads((ROOT / 'CMakePresets.json').read_text(encoding='utf-8'))
    check(presets['configurePresets'][0]['cacheVariables']['EVERGLOW_TESTS'] == 'ON', 'the base of all presets')
    check(presets['testPresets'][0]['execution']['noTestsAction'] == 'error', 'no tests are no success')
    for kind in ('configurePresets', 'testPresets'):
        check(all('inherits' in preset for preset in presets[kind][1:]), kind)


with tempfile.TemporaryDirectory() as temporary:
    demo = Script(os.path.join(temporary, 'script'))
    folders_of_texts(demo)
    missing_texts(demo)
    card(demo)
    tests_of_the_build(demo)
    os.mkdir(os.path.join(temporary, 'demo'))
    temporary_folder(os.path.join(temporary, 'demo'))
    missing_folder(temporary)
