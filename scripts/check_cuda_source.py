"""Compiles CUDA C++ to machine code of a GPU that need not be there, and tells what each kernel takes of it.

    check_cuda_source.py CUDA_FOLDER SOURCE_FOLDER [ARCHITECTURE]

The sources are those that the test `cuda_source` of kerple-gpu writes. CUDA_FOLDER has lib/libnvrtc.so, bin/ptxas and include/.
Fails where a kernel does not compile, where one that has matrix units make its products has no instruction of theirs, where registers
do not suffice for what a unit holds, or where a multiprocessor has no room for a cube, for two of heads of 64 features. The compiler
spills a few values where one more cube then fits, which is allowed up to a limit; asked for room for one cube it must spill nothing.
"""

import concurrent.futures
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# of a multiprocessor: registers, and bytes of shared memory, of which every cube takes 1 KiB for itself
REGISTERS, SHARED = 65536, 228 << 10
# of a unit: bytes of stores and loads that the compiler may choose
CHOSEN = 160


def compiler(cuda):
    """NVRTC from CUDA source to PTX, as the program itself calls it."""
    lib = ctypes.CDLL(str(next((cuda / "lib").glob("libnvrtc.so*"))))

    def call(name, *arguments):
        status = getattr(lib, name)(*arguments)
        if status not in (0, 6):  # 6: the source is wrong, which the log says
            raise SystemExit(f"{name}: error {status}")
        return status

    def text(program, size_of, get):
        size = ctypes.c_size_t()
        call(size_of, program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        call(get, program, room)
        return room.value

    def compile_source(source, architecture):
        program = ctypes.c_void_p()
        call("nvrtcCreateProgram", ctypes.byref(program), source, None, 0, None, None)
        options = [f"--gpu-architecture={architecture}", f"--include-path={cuda}/include"]
        options.append(f"--include-path={cuda}/include/cccl")
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if call("nvrtcCompileProgram", program, len(options), array):
            raise SystemExit(text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode())
        ptx = text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        call("nvrtcDestroyProgram", ctypes.byref(program))
        return ptx

    return compile_source


def taken(cuda, ptx, architecture):
    """Registers of a unit, bytes of spills, of its stack, of shared memory that is part of the kernel; and of spills with one cube."""

    def assembled(ptx):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "kernel.ptx")
            file.write_bytes(ptx)
            command = [cuda / "bin/ptxas", "-v", f"-arch={architecture}", file, "-o", pathlib.Path(folder, "kernel.cubin")]
            said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode:
            raise SystemExit(said.stderr)

        def number(pattern):
            found = re.search(pattern, said.stderr)
            return int(found[1]) if found else 0

        spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        return number(r"Used (\d+) registers"), spills, number(r"(\d+) bytes stack frame"), number(r"(\d+) bytes smem")

    registers, spills, stack, static = assembled(ptx)
    alone = 0
    if spills:
        one_cube, changed = re.subn(rb"(\.maxntid [^\n]*)", rb"\1\n.minnctapersm 1", ptx)
        if changed != 1:
            raise SystemExit("a kernel without the number of its units")
        alone = assembled(one_cube)[1]
    return registers, spills, stack, static, alone


def main():
    cuda, sources = map(pathlib.Path, sys.argv[1:3])
    architecture = sys.argv[3] if len(sys.argv) > 3 else "sm_90a"
    compile_source, wrong, count, chosen = compiler(cuda), [], 0, 0
    print(f"{architecture:<24} {'units':>6} {'registers':>10} {'spills':>7} {'stack':>6} {'shared':>8} {'cubes':>6} {'matrices':>8}")

    def compiled(line):
        """What a line names: a kernel, the units of its cube, bytes of shared memory, what makes products; and what it takes."""
        name, units, shared, products = line.split()
        ptx = compile_source((sources / f"{name}.cu").read_bytes(), architecture)
        matrices = len(re.findall(rb"\bw?mma\.(?:mma\.)?sync", ptx))
        return name, int(units), int(shared), products, matrices, taken(cuda, ptx, architecture)

    # neither compiler holds Python's lock
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(compiled, (sources / "list").read_text().splitlines()))
    for name, units, shared, products, matrices, (registers, spills, stack, static, alone) in found:
        shared += static
        # registers are handed out by 8 to a unit
        cubes = min(REGISTERS // (-(-registers // 8) * 8 * units), SHARED // (shared + 1024), 2048 // units)
        print(f"{name:<24} {units:>6} {registers:>10} {spills:>7} {stack:>6} {shared:>8} {cubes:>6} {matrices:>8}")
        if (products == "matrices") != (matrices > 0):
            raise SystemExit(f"{name}: products by {products}, and {matrices} instructions for matrices")
        chosen += spills > 0
        if alone or spills > CHOSEN or cubes < (2 if name.endswith("_64") else 1):
            wrong.append(name)
        count += 1
    if wrong or not count:
        raise SystemExit(f"of {count} kernels these spill, or do not fit a multiprocessor: {' '.join(wrong)}")
    print(f"{count} kernels compile for {architecture}: {chosen} spill so that one cube more fits, none where there is room for one")


main()
