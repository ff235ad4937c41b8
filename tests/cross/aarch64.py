# Compiles the library and the proofs of its cases for AArch64, without a warning, and runs them under qemu: nothing may lean on
# x86-64 but what asks for it. At -O1, since no speed is in question.
# Usage: aarch64.py SOURCE BUILD GENERATOR. Exits with 77 where a compiler or qemu is missing.
import os
import re
import shutil
import subprocess
import sys

COMPILER = 'aarch64-linux-gnu-g++'
LIBRARIES = '/usr/aarch64-linux-gnu'  # where Debian's cross compiler keeps those of the other processor


def run(*command):
    """What the command printed; the whole of it is shown where the command fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    if result.returncode:
        print(result.stdout)
        sys.exit(f'{command[0]} ended with {result.returncode}')
    return result.stdout


def main():
    source, build, generator = sys.argv[1:]
    emulator = shutil.which('qemu-aarch64-static') or shutil.which('qemu-aarch64')
    for name, found in ((COMPILER, shutil.which(COMPILER)), ('qemu-aarch64-static', emulator)):
        if not found:
            print(f'skipped: {name} is not installed')
            return 77
    launcher = shutil.which('ccache') or ''
    run('cmake', '-S', source, '-B', build, '-G', generator, '-DCMAKE_SYSTEM_NAME=Linux', '-DCMAKE_SYSTEM_PROCESSOR=aarch64',
        f'-DCMAKE_CXX_COMPILER={COMPILER}', f'-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}', '-DCMAKE_BUILD_TYPE=Debug',
        '-DCMAKE_CXX_FLAGS_DEBUG=-O1', '-DEVERGLOW_ONEDNN=OFF')
    built = run('cmake', '--build', build, '--parallel', str(len(os.sched_getaffinity(0))))
    warnings = re.findall('.*warning:.*', built)
    if warnings:
        print(*warnings, sep='\n')
        return 1
    print(run(emulator, '-L', LIBRARIES, os.path.join(build, 'everglow_cross'), 'sanitize'), end='')
    return 0


if __name__ == '__main__':
    sys.exit(main())
