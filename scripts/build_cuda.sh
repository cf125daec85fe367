#!/usr/bin/env bash
# Builds the command with CUDA on Debian where GitHub is out of reach: scripts/build_cuda.sh [LLVM_FOLDER] [-- CARGO ARGUMENTS]
#
# With GitHub in reach none of this is needed: `cargo build --release --features cuda` downloads the LLVM that CubeCL links.
# Here that LLVM is taken from Debian unstable, without installing anything of it, and put where CubeCL looks for it. No CUDA
# toolkit is needed to build. docs/gpu.md says what a machine needs to run the program.
set -euo pipefail
cd "$(dirname "$0")/.."

root=target/llvm
case "${1:-}" in
    "" | --) ;;
    *) root=$1; shift ;;
esac
[ "${1:-}" = -- ] && shift
mkdir -p "$root"
root=$(realpath "$root")
# the version in Cargo.lock asks for this one
bundle=23.1.0-4
package=llvm-23-dev
prefix=$root/tracel/tracel-llvm-$bundle

fetch() {
    local apt=$root/apt deb
    mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/archives/partial"
    cat >"$apt/sources/sid.sources" <<SOURCES
Types: deb
URIs: ${DEBIAN_MIRROR:-http://deb.debian.org/debian}
Suites: sid
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    local options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources" -o "Dir::State::Lists=$apt/lists"
        -o "Dir::Cache::archives=$apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" download "$package")
    deb=$(ls "$apt/${package}"_*.deb)
    sha256sum "$deb"
    dpkg -x "$deb" "$root/unpacked"
}

# One archive of what X86 and NVPTX need, with what a newer C library has and this one may not.
archive() {
    local from=$root/unpacked/usr/lib/llvm-23/lib skip
    skip='AArch64|AMDGPU|ARM|AVR|BPF|Hexagon|Lanai|LoongArch|M68k|MSP430|Mips|PowerPC|RISCV|Sparc|SPIRV|SystemZ|VE|WebAssembly'
    skip="$skip|XCore|Xtensa|DirectX|ARC|CSKY|BOLT|Exegesis|Debuginfod|HTTP|Fuzz"
    {
        echo "CREATE $prefix/lib/libLLVMall.a"
        for library in "$from"/libLLVM*.a; do
            [[ $(basename "$library") =~ ^libLLVM($skip) ]] || echo "ADDLIB $library"
        done
        echo SAVE
        echo END
    } | ar -M
    cat >"$root/newer.c" <<'SOURCE'
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
long __isoc23_strtol(const char *s, char **end, int base) { return strtol(s, end, base); }
long long __isoc23_strtoll(const char *s, char **end, int base) { return strtoll(s, end, base); }
unsigned long __isoc23_strtoul(const char *s, char **end, int base) { return strtoul(s, end, base); }
unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }
int __isoc23_sscanf(const char *s, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int read = vsscanf(s, format, list);
    va_end(list);
    return read;
}
SOURCE
    cc -O2 -c -o "$root/newer.o" "$root/newer.c"
    ar r "$prefix/lib/libLLVMall.a" "$root/newer.o"
}

prepare() {
    local from=$root/unpacked/usr include=$prefix/include file
    rm -rf "$prefix"
    mkdir -p "$prefix/bin" "$prefix/lib" "$include"
    cp -rL "$from/lib/llvm-23/include/." "$include/" 2>/dev/null || true
    [ -d "$include/llvm" ] || cp -rL "$from/include/llvm-23/." "$include/"
    [ -d "$include/llvm-c" ] || cp -rL "$from/include/llvm-c-23/." "$include/"
    for file in Targets AsmPrinters AsmParsers Disassemblers; do
        grep -E '^LLVM_[A-Z_]+\((X86|NVPTX)\)' "$include/llvm/Config/$file.def" >"$root/$file" || true
        # the lines that name targets stand between others that define what is done with them
        grep -vE '^LLVM_[A-Z_]+\([A-Za-z0-9]+\)' "$include/llvm/Config/$file.def" >"$root/rest"
        awk -v targets="$root/$file" '/^#undef/ { while ((getline line < targets) > 0) print line } { print }' "$root/rest" \
            >"$include/llvm/Config/$file.def"
    done
    archive
    file=$(ls /usr/lib/*/libzstd.so.1 /lib/*/libzstd.so.1 2>/dev/null | head -1)
    ln -s "$file" "$prefix/lib/libzstd.so"
    file=$(ls /usr/lib/*/libz.so.1 /lib/*/libz.so.1 2>/dev/null | head -1)
    ln -s "$file" "$prefix/lib/libz.so"
    cat >"$prefix/bin/llvm-config" <<CONFIG
#!/bin/sh
# as the build scripts of CubeCL ask
for question in "\$@"; do
    case \$question in
        --libs) echo -lLLVMall ;;
        --system-libs) echo -lzstd -lz -lrt -ldl -lm -lpthread ;;
        --libdir) echo $prefix/lib ;;
        --includedir) echo $include ;;
        --version) echo 23.1.4 ;;
        --cxxflags)
            echo -I$include -std=c++17 -fno-exceptions -D_GNU_SOURCE -D__STDC_CONSTANT_MACROS -D__STDC_FORMAT_MACROS \
                -D__STDC_LIMIT_MACROS
            ;;
    esac
done
CONFIG
    chmod +x "$prefix/bin/llvm-config"
    : >"$prefix/.tracel-llvm-installed"
}

[ -d "$root/unpacked/usr" ] || fetch
[ -f "$prefix/.tracel-llvm-installed" ] || prepare
export XDG_DATA_HOME=$root
# the newest interface that the driver must know; without a toolkit the newest of all would be assumed
export CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000}
if [ $# -eq 0 ]; then
    set -- build --release --locked -p kerple --features cuda
fi
exec "${CARGO:-cargo}" "$@"
