# The README shows what is true: its C++ is part of an example, each example prints what the README says, and so does the tool where
# the answer is quick and the same on every machine.
# Usage: readme_test.py ROOT FOLDER_OF_EXAMPLES [TOOL]
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# These take minutes, need a model, or depend on the machine.
NOT_RUN = re.compile(r'everglow (train|translate|info)\b')


def sessions(readme):
    """Each block of commands, as a list of (command, what it prints)."""
    for block in re.findall(r'^```\n(\$ .*?)^```', readme, re.M | re.S):
        parts = re.split(r'^\$ (.*)\n', block, flags=re.M)
        yield list(zip(parts[1::2], parts[2::2]))


def cpp_faults(root, readme, folder):
    sources = sorted((root / 'examples').glob('*.cpp'))
    examples = [path.read_text(encoding='utf-8') for path in sources]
    blocks = re.findall(r'^```cpp\n(.*?)^```', readme, re.M | re.S)
    faults = ['a C++ block is not part of any example:\n' + block for block in blocks if not any(block in text for text in examples)]
    for name in (path.stem for path in sources):
        printed = subprocess.run([folder / name], check=True, capture_output=True, text=True).stdout
        if '```\n' + printed + '```' not in readme:
            faults.append(f'{name} prints what the README does not show:\n{printed}')
        if f'(examples/{name}.cpp)' not in readme:
            faults.append(f'the README does not name the example {name}')
    return faults if blocks else ['the README shows no C++']


def tool_faults(readme, tool):
    def printed(command, folder):
        path = os.path.dirname(os.path.abspath(tool)) + os.pathsep + os.environ.get('PATH', os.defpath)
        result = subprocess.run(['sh', '-c', command], cwd=folder, env={**os.environ, 'PATH': path}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, encoding='utf-8', timeout=120)
        return result.stdout if result.returncode == 0 else f'{result.stdout}(status {result.returncode})\n'

    faults, ran = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for session in sessions(readme):
            for command, shown in session:
                came = shown
                if command == 'everglow info':  # its end, the list of the kernels, is the same everywhere but for the rows of CUDA
                    came = printed(command, folder)
                    built_with_cuda = 'CUDA not built' not in came
                    came, shown = (text.partition('\nkernels,')[2] for text in (came, shown))
                    if built_with_cuda:
                        came, shown = (re.sub(r'^\w+ +cuda .*\n', '', text, flags=re.M) for text in (came, shown))
                elif not NOT_RUN.search(command):
                    came, ran = printed(command, folder), ran + 1
                if came != shown:
                    faults.append(f'$ {command}\nprints\n{came}but the README shows\n{shown}')
    return faults if ran else faults + ['the README shows no command of the tool that can be run here']


def main():
    root, folder, tools = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    readme = (root / 'README.md').read_text(encoding='utf-8')
    faults = cpp_faults(root, readme, folder)
    for tool in tools:
        faults += tool_faults(readme, tool)
    links = re.findall(r'\]\(([^):]+)\)', readme)
    faults += [f'the link {link} leads nowhere' for link in links if not (root / link).exists()]
    print('\n'.join(faults) or f'the C++, the output, the sessions and {len(links)} links agree')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
