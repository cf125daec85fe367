//! The kernels as CUDA C++, written into `target/tmp/cuda-source` for `scripts/check_cuda_source.py` to compile.

use kerple_gpu::cuda_source::{CudaSource, sources};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn every_kernel_is_written_for_cuda() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-source");
    fs::create_dir_all(&folder).unwrap();
    let (mut list, mut names) = (String::new(), BTreeSet::new());
    for CudaSource { name, code, units, shared, matrices } in sources(&[64, 128, 256]).unwrap() {
        assert_eq!(code.matches("__global__").count(), 1, "{name}");
        // sums in order, never in that in which units come
        assert!(!code.contains("atomic"), "{name}");
        assert!(shared <= 227 << 10 && units <= 1024, "{name}: {units} units, {shared} bytes shared");
        // kernels on tiles have matrix units make their products wherever numbers are shorter
        let rounds = name.contains("tf32_") || name.contains("bf16_");
        assert_eq!(matrices, rounds && !name.starts_with("split_kv"), "{name}");
        assert_eq!(code.contains("wmma::mma_sync"), matrices, "{name}");
        fs::write(folder.join(format!("{name}.cu")), code).unwrap();
        list += &format!("{name} {units} {shared} {}\n", if matrices { "matrices" } else { "units" });
        assert!(names.insert(name));
    }
    assert_eq!(names.len(), 14 + 3 * (13 * 4 + 3 + 3 * 4 + 2));
    fs::write(folder.join("list"), list).unwrap();
}
