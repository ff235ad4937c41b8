# The README shows what is true: its C++ is part of an example, and the example prints what the README says.
# Usage: readme_test.py ROOT PROGRAM
import pathlib
import re
import subprocess
import sys


def main():
    root, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    readme = (root / 'README.md').read_text(encoding='utf-8')
    examples = [path.read_text(encoding='utf-8') for path in (root / 'examples').glob('*.cpp')]
    blocks = re.findall(r'^```cpp\n(.*?)^```', readme, re.M | re.S)
    faults = ['a C++ block is not part of any example:\n' + block for block in blocks if not any(block in text for text in examples)]
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    if '```\n' + printed + '```' not in readme:
        faults.append(f'{program} prints what the README does not show:\n{printed}')
    links = re.findall(r'\]\(([^):]+)\)', readme)
    faults += [f'the link {link} leads nowhere' for link in links if not (root / link).exists()]
    print('\n'.join(faults) or f'{len(blocks)} block(s) of C++, {len(links)} links and the output agree')
    return 1 if faults or not blocks else 0


if __name__ == '__main__':
    sys.exit(main())
