//! The published images: their lists, and PNG files that are read on demand.

use crate::contain::contain;
use crate::error::{Error, Result};
use crate::examples::{Example, ExampleId, Examples, TaskInfo};
use crate::file::{PositionedFile, filled_lines, is_folder, is_hidden, read_text};
use crate::hash::{Checksum, hex};
use crate::lra::{check_stop, example};
use crate::split::Split;
use std::io::BufReader;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// A longer list is not one.
const LONGEST_LIST: u64 = 1 << 28;

/// The images of a level.
pub(super) struct PathfinderFiles {
    facts: TaskInfo,
    folder: PathBuf,
    /// Pixels a side.
    size: usize,
    /// Path within the folder, and class.
    images: Vec<(PathBuf, u32)>,
}

impl PathfinderFiles {
    pub(super) fn open(
        facts: TaskInfo,
        (path, level): (&Path, &str),
        size: usize,
        stop: &AtomicBool,
    ) -> Result<PathfinderFiles> {
        let inner = path.join(level);
        let folder = if is_folder(&inner)? { inner } else { path.to_owned() };
        let (mut images, mut sum) = (Vec::new(), Checksum::default());
        for list in lists(&folder)? {
            let text = read_text(&list, LONGEST_LIST, HINT)?;
            for (number, line) in filled_lines(text.as_bytes()) {
                let line = std::str::from_utf8(line).expect("lines of a text are text");
                let bad = |message: String| Error::damaged_at(&list, format!(", line {number}"), message, HINT);
                let fields: Vec<&str> = line.split(' ').collect();
                let [place, name, _, label, ..] = fields[..] else {
                    return Err(bad(format!("the line has {} fields; expected at least 4", fields.len())));
                };
                let label = match label {
                    "0" => 0,
                    "1" => 1,
                    other => return Err(bad(format!("the label is `{other}`; it must be 0 or 1"))),
                };
                let image = Path::new(place).join(name);
                if [place, name].concat().chars().any(char::is_control) {
                    return Err(bad(format!("`{place}` and `{name}` cannot name a folder and a file")));
                }
                if image.components().any(|part| !matches!(part, Component::Normal(_))) {
                    return Err(bad(format!("{} is outside the folder", image.display())));
                }
                check_stop(stop)?;
                let bytes = content(&folder.join(&image))?;
                // the published set has some files without content
                if !bytes.is_empty() {
                    sum.add(format!("{place}/{name} {label} {}\n", bytes.len()).as_bytes());
                    sum.add(&bytes);
                    images.push((image, label));
                }
            }
        }
        if images.len() < 10 {
            let message =
                format!("{}: its lists name {} images; three splits need at least 10", folder.display(), images.len());
            return Err(Error::refused(message, HINT));
        }
        let content = format!("{} {}", facts.content, hex(sum.finish()));
        Ok(PathfinderFiles { facts: TaskInfo { content, ..facts }, folder, size, images })
    }

    /// Where a split begins and ends: 80 %, 10 %, 10 %.
    fn range(&self, split: Split) -> std::ops::Range<usize> {
        let at = |percent: usize| self.images.len() * percent / 100;
        split.of([0..at(80), at(80)..at(90), at(90)..at(100)])
    }
}

const HINT: &str = "set `data.path` to the folder of one level of the published images, with metadata/*.npy and imgs/";

/// A larger file is no image of these.
const LARGEST_IMAGE: u64 = 1 << 24;

/// What the file of an image holds.
fn content(path: &Path) -> Result<Vec<u8>> {
    let file = PositionedFile::open(path)?;
    match file.len() {
        0..=LARGEST_IMAGE => file.read(0..file.len()),
        bytes => {
            let message = format!("the file has {bytes} bytes; an image may have up to {LARGEST_IMAGE}");
            Err(Error::damaged(path, message, "download the image again"))
        }
    }
}

/// The lists of a folder, by their numbers.
fn lists(folder: &Path) -> Result<Vec<PathBuf>> {
    let metadata = folder.join("metadata");
    let entries = std::fs::read_dir(&metadata).map_err(Error::io(&metadata, "read"))?;
    let mut lists = entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(Error::io(&metadata, "read")))
        .collect::<Result<Vec<_>>>()?;
    lists.retain(|path| path.extension().is_some_and(|end| end == "npy") && !is_hidden(path));
    let number = |path: &PathBuf| path.file_stem().and_then(|name| name.to_str()?.parse::<u64>().ok());
    lists.sort_by_key(|path| (number(path), path.clone()));
    Ok(lists)
}

impl Examples for PathfinderFiles {
    fn facts(&self) -> TaskInfo {
        self.facts.clone()
    }

    fn count(&self, split: Split) -> Option<u64> {
        Some(self.range(split).len() as u64)
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let (image, label) = &self.images[self.range(place.split).start + place.index as usize];
        let path = self.folder.join(image);
        let pixels = grey_pixels(&path, self.size)?;
        Ok(example(pixels.into_iter().take(length).map(u32::from).collect(), *label))
    }

    fn answers(&self, _: usize) -> usize {
        1
    }
}

/// The pixels of a square PNG image of grey values, or of the first channel of one in colour.
fn grey_pixels(path: &Path, size: usize) -> Result<Vec<u8>> {
    let file = kerple_run::files::open(path).map_err(Error::io(path, "open"))?;
    let bad = |message: String| Error::damaged(path, message, "download the image again");
    let decoded = contain(|| -> std::result::Result<(png::OutputInfo, Vec<u8>), String> {
        let mut decoder =
            png::Decoder::new_with_limits(BufReader::new(file), png::Limits { bytes: LARGEST_IMAGE as usize });
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
        let info = reader.info();
        if (info.width as usize, info.height as usize) != (size, size) {
            return Err(format!("the image has {} x {} pixels; expected {size} x {size}", info.width, info.height));
        }
        let bytes = reader.output_buffer_size().ok_or("the image is too large")?;
        let mut pixels = vec![0; bytes];
        let info = reader.next_frame(&mut pixels).map_err(|error| error.to_string())?;
        pixels.truncate(info.buffer_size());
        Ok((info, pixels))
    });
    let (info, pixels) = decoded.flatten().map_err(bad)?;
    let pixels: Vec<u8> = pixels.into_iter().step_by(info.color_type.samples()).collect();
    if pixels.len() == size * size {
        Ok(pixels)
    } else {
        Err(bad(format!("the image has {} pixels; expected {}", pixels.len(), size * size)))
    }
}
