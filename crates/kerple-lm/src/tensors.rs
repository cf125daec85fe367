//! Safetensors files that are larger than memory allows: read and written one tensor at a time.
//!
//! Files are read with positioned reads, not memory-mapped: when another program truncates a file,
//! this process gets an error and is not killed.

use crate::error::{Error, Result};
use kerple_data::Sha256;
pub use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ScopedJoinHandle};

/// Longest header: what the format's library takes.
const LONGEST_HEADER: u64 = 100_000_000;

/// Bytes read at once, a multiple of every number's.
const BLOCK: usize = 1 << 20;

/// Bytes that a file may have that are not on the disk, about, before its writer waits for that.
const OPEN: usize = 64 << 20;

/// Parts that wait to be summed or written.
const WAITING: usize = 2;

/// An open file of which the header has been read and compared with its size.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: Mutex<File>,
    header: Metadata,
    /// Where the values begin.
    start: u64,
}

impl TensorFile {
    /// Opens a file whose header describes its contents exactly.
    ///
    /// # Errors
    /// What cannot be read; a file that is cut short, or no file of tensors, with `hint`.
    pub fn open(path: &Path, hint: &str) -> Result<TensorFile> {
        let damaged = |message: String| Error::damaged(path, message, hint);
        let mut file = kerple_run::files::open(path).map_err(Error::io(path, "read"))?;
        let bytes = file.metadata().map_err(Error::io(path, "open"))?.len();
        let mut size = [0; 8];
        if bytes < 8 {
            return Err(damaged(format!("{bytes} bytes are too few for a safetensors file")));
        }
        file.read_exact(&mut size).map_err(Error::io(path, "read"))?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER || size > bytes - 8 {
            let most = LONGEST_HEADER.min(bytes - 8);
            return Err(damaged(format!("its header claims {size} bytes, the limit is {most}")));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(Error::io(path, "read"))?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("its header cannot be read: {error}")))?;
        let (start, wanted) = (8 + size, 8 + size + header.data_len() as u64);
        if wanted != bytes {
            return Err(damaged(format!("it has {bytes} bytes, its header describes {wanted}")));
        }
        Ok(TensorFile { path: path.to_owned(), file: Mutex::new(file), header, start })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, in the order of their values.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Type and shape of a tensor, where the file has it.
    pub fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.header.info(name).map(|info| (info.dtype, &info.shape[..]))
    }

    /// The bytes of a tensor, little endian, row by row; `None` where the file has none of this name.
    ///
    /// # Errors
    /// A file that cannot be read, or became shorter since it was opened.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        self.read_at(name, info.data_offsets.0, &mut bytes).map(|()| Some(bytes))
    }

    /// Fills `values` with a tensor of as many numbers of 32 bits, without holding them twice; whether the file has one.
    ///
    /// # Errors
    /// As of [`TensorFile::read`].
    pub fn read_f32(&self, name: &str, values: &mut [f32]) -> Result<bool> {
        let fits = |info: &&TensorInfo| {
            info.dtype == Dtype::F32 && info.data_offsets.1 - info.data_offsets.0 == size_of_val(values)
        };
        let Some(info) = self.header.info(name).filter(fits) else { return Ok(false) };
        self.read_at(name, info.data_offsets.0, bytemuck::cast_slice_mut(values))?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits().swap_bytes()));
        }
        Ok(true)
    }

    /// Gives the bytes of a tensor to `take`, a part after the other, of whole numbers of up to 64 bits; whether the file has one.
    ///
    /// # Errors
    /// As of [`TensorFile::read`], and the first of `take`.
    pub fn parts(&self, name: &str, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        let Some(info) = self.header.info(name) else { return Ok(false) };
        let (from, end) = info.data_offsets;
        let mut block = vec![0; BLOCK.min(end - from)];
        for at in (from..end).step_by(BLOCK) {
            let bytes = &mut block[..BLOCK.min(end - at)];
            self.read_at(name, at, bytes)?;
            take(bytes)?;
        }
        Ok(true)
    }

    /// Bytes of a tensor, which begin at this place of the values.
    fn read_at(&self, name: &str, from: usize, bytes: &mut [u8]) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let read = file.seek(SeekFrom::Start(self.start + from as u64)).and_then(|_| file.read_exact(bytes));
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let message = format!("tensor `{name}` is incomplete: another program truncated the file");
                Error::damaged(&self.path, message, "do not change the file while it is in use")
            }
            _ => Error::io(&self.path, "read")(error),
        })
    }
}

/// SHA-256 of a file, in hexadecimal, without holding it.
///
/// # Errors
/// A file that cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = kerple_run::files::open(path).map_err(Error::io(path, "read"))?;
    let (mut sum, mut block) = (Sha256::default(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).map_err(Error::io(path, "read"))? {
            0 => return Ok(sum.finish()),
            count => sum.add(&block[..count]),
        }
    }
}

/// A tensor that is about to be written as `f32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Numbers at once where a tensor passes in parts.
pub const PART: usize = 1 << 20;

/// Takes the next values of a tensor.
pub type ValueSink<'a> = dyn FnMut(Vec<f32>) -> Result<()> + 'a;

/// Writes and syncs a new file of `f32` tensors, sorted by name as the format's library sorts them, and returns its SHA-256.
/// `fill` is asked for the values of one slot, by its number, after the other, in as many parts as it likes.
///
/// # Errors
/// Names that are there twice, what the disk refuses, and the first error of `fill`; a part of the file may then be there.
pub fn write(
    path: &Path,
    slots: &[TensorSpec],
    mut fill: impl FnMut(usize, &mut ValueSink<'_>) -> Result<()>,
) -> Result<String> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|number| &slots[*number].name);
    let mut end = 0;
    let info = |number: &usize| {
        let TensorSpec { name, shape } = &slots[*number];
        let from = end;
        end += 4 * shape.iter().product::<usize>();
        (name.clone(), TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (from, end) })
    };
    let infos = order.iter().map(info).collect();
    let header =
        Metadata::new(None, infos).map_err(|error| Error::damaged(path, error.to_string(), "this is a bug"))?;
    let mut header = serde_json::to_vec(&header).expect("a header is plain data");
    // values begin at a multiple of 8
    header.resize(header.len().next_multiple_of(8), b' ');
    let file = File::create(path).map_err(Error::io(path, "create"))?;
    let start = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
    // while parts are summed and written, by a thread each, the next are made
    let (to_sum, summed) = sync_channel::<Arc<Vec<f32>>>(WAITING);
    let (to_disk, written) = sync_channel::<Arc<Vec<f32>>>(WAITING);
    thread::scope(|scope| {
        let sum = scope.spawn(|| sum_of(&start, summed));
        let disk = scope.spawn(|| put(path, file, &start, written));
        let make = || {
            for number in order {
                let mut count = 0;
                fill(number, &mut |values| {
                    count += values.len();
                    let values = Arc::new(values);
                    let given = to_disk.send(values.clone()).and_then(|()| to_sum.send(values));
                    // the disk says why
                    given.map_err(|_| Error::io(path, "write")(ErrorKind::BrokenPipe.into()))
                })?;
                assert_eq!(count, slots[number].shape.iter().product::<usize>(), "{}", slots[number].name);
            }
            Ok(())
        };
        let made = make();
        drop((to_sum, to_disk));
        let (sum, written) = (joined(sum), joined(disk));
        written.and(made).map(|()| sum)
    })
}

fn joined<T>(thread: ScopedJoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn sum_of(start: &[u8], tensors: Receiver<Arc<Vec<f32>>>) -> String {
    let mut sum = Sha256::default();
    sum.add(start);
    tensors.iter().for_each(|values| sum.add(bytemuck::cast_slice(&values)));
    sum.finish()
}

/// Writes and syncs everything; the disk works while more comes.
fn put(path: &Path, mut file: File, start: &[u8], tensors: Receiver<Arc<Vec<f32>>>) -> Result<()> {
    let mut open = 0;
    file.write_all(start).map_err(Error::io(path, "write"))?;
    for values in tensors {
        file.write_all(bytemuck::cast_slice(&values)).map_err(Error::io(path, "write"))?;
        open += size_of_val(&values[..]);
        if open >= OPEN {
            file.sync_data().map_err(Error::io(path, "sync"))?;
            open = 0;
        }
    }
    file.sync_all().map_err(Error::io(path, "sync"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Vec<TensorSpec> {
        [("b", vec![2, 3]), ("a", vec![5]), ("c", vec![])]
            .map(|(name, shape)| TensorSpec { name: name.into(), shape })
            .into()
    }

    fn values(number: usize) -> Vec<f32> {
        let count = slots()[number].shape.iter().product::<usize>();
        (0..count).map(|at| (10 * number + at) as f32).collect()
    }

    #[test]
    fn files_are_those_of_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let sum = write(&path, &slots(), |number, take| take(values(number))).unwrap();
        assert_eq!(sha256(&path).unwrap(), sum);
        let data = std::fs::read(&path).unwrap();
        let all: Vec<(TensorSpec, Vec<f32>)> =
            slots().into_iter().enumerate().map(|(n, slot)| (slot, values(n))).collect();
        let views = all.iter().map(|(slot, values)| {
            let bytes = bytemuck::cast_slice(values);
            (&slot.name, safetensors::tensor::TensorView::new(Dtype::F32, slot.shape.clone(), bytes).unwrap())
        });
        assert_eq!(data, safetensors::serialize(views, None).unwrap());
        let file = TensorFile::open(&path, "").unwrap();
        assert_eq!(file.names(), ["a", "b", "c"]);
        assert_eq!(file.info("b"), Some((Dtype::F32, &[2, 3][..])));
        let read = file.read("b").unwrap().unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&read), values(0));
        assert_eq!(file.read("d").unwrap(), None);
        let mut held = vec![f32::NAN; 6];
        assert!(file.read_f32("b", &mut held).unwrap());
        assert_eq!(held, values(0));
        assert!(!file.read_f32("d", &mut held).unwrap() && !file.read_f32("b", &mut held[..5]).unwrap());
    }

    /// Whoever makes the values is asked no further, and the error is the first one.
    #[test]
    fn an_error_on_either_side_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut asked = 0;
        let error = write(&path, &slots(), |number, take| {
            asked += 1;
            if asked == 2 { Err(Error::refused("no more", "")) } else { take(values(number)) }
        });
        assert!(error.unwrap_err().to_string().contains("no more") && asked == 2);
        // a disk that is full
        #[cfg(target_os = "linux")]
        {
            let error = write(Path::new("/dev/full"), &slots(), |number, take| take(values(number))).unwrap_err();
            assert!(error.to_string().contains("/dev/full"), "{error}");
        }
    }

    /// Cut at every byte, and with sizes that are not so.
    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        write(&path, &slots(), |number, take| take(values(number))).unwrap();
        let data = std::fs::read(&path).unwrap();
        for len in 0..data.len() {
            std::fs::write(&path, &data[..len]).unwrap();
            assert!(matches!(TensorFile::open(&path, "again"), Err(Error::Damaged { .. })), "{len}");
        }
        std::fs::write(&path, [&data[..], &[0]].concat()).unwrap();
        assert!(TensorFile::open(&path, "again").unwrap_err().to_string().contains("its header describes"));
        std::fs::write(&path, [&u64::MAX.to_le_bytes(), &data[8..]].concat()).unwrap();
        assert!(TensorFile::open(&path, "again").unwrap_err().to_string().contains("18446744073709551615"));
    }
}
