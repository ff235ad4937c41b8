# Shell functions of ./demo and ./test: install missing packages, configure and build a preset. Sourced with the root of the
# project as the current folder.
# shellcheck shell=sh

say() { printf '== %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

cores() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }

# packages SET...: the names in these sets of scripts/packages.txt that are for this processor.
packages() {
  for set in "$@"; do
    awk -v set="$set" -v machine="$(uname -m)" '$1 == set && ($3 == "" || $3 == machine) { print $2 }' scripts/packages.txt
  done
}

# missing PACKAGE...: those that are not installed.
missing() {
  for package in "$@"; do
    case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
      'install ok installed') ;;
      *) printf '%s ' "$package" ;;
    esac
  done
}

# install_missing SET...: touches neither the package manager nor the network where nothing is missing.
install_missing() {
  names=$(packages "$@" | tr '\n' ' ')
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "no apt here: going on with what is installed (needed, by Debian's names: $names)"
    return
  fi
  # shellcheck disable=SC2086  # names are words
  names=$(missing $names)
  [ -n "$names" ] || return 0
  as_root=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "these packages are missing, and there is neither root nor sudo to install them: $names
Ask for (as root): apt-get update && apt-get install --no-install-recommends $names"
    as_root=sudo
  fi
  say "installing with apt-get: $names"
  mkdir -p build
  # shellcheck disable=SC2086
  if ! { $as_root apt-get update -qq -o Acquire::Retries=3 &&
         $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Acquire::Retries=3 $names
       } >build/apt.log 2>&1; then
    tail -n 20 build/apt.log >&2
    fail "the packages could not be installed (all of the output: build/apt.log)"
  fi
}

# configure PRESET [OPTION...]: with the generator that the build folder already has, else Ninja, else Make.
configure() {
  preset=$1
  shift
  command -v cmake >/dev/null || fail "cmake is missing"
  cache=build/$preset/CMakeCache.txt
  if [ -f "$cache" ]; then
    generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$cache")
  elif command -v ninja >/dev/null; then
    generator=Ninja
  elif command -v make >/dev/null; then
    generator='Unix Makefiles'
  else
    fail "neither ninja nor make is installed"
  fi
  say "configuring build/$preset"
  mkdir -p "build/$preset"
  if ! cmake --preset "$preset" -G "$generator" "$@" >"build/$preset/configure.log" 2>&1; then
    cat "build/$preset/configure.log" >&2
    fail "cmake could not configure the preset $preset"
  fi
}

# build_preset PRESET [TARGET]
build_preset() {
  say "building build/$1 on $(cores) cores"
  cmake --build --preset "$1" --parallel "$(cores)" ${2:+--target "$2"} || fail "the build of the preset $1 failed"
}
