//! The output folder of a page: what is written there, and what may be overwritten.

use crate::error::{Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Name of the page.
pub const INDEX: &str = "index.html";

/// Name of the same as text.
pub const TEXT: &str = "report.md";

/// What marks the pages as made here, so that nothing else is ever overwritten.
pub const MARK: &str = "made by kerple report";

/// Puts a file there, whole or not at all, with the folders above it, and adds it to the list of what was written.
///
/// # Errors
/// A file or folder that cannot be written.
pub fn put(path: PathBuf, content: Vec<u8>, files: &mut Vec<PathBuf>) -> Result<()> {
    let folder = path.parent().expect("a file is in a folder");
    std::fs::create_dir_all(folder).map_err(Error::io_while("creating", folder))?;
    kerple_run::files::replace(&path, &content).map_err(Error::io_while("writing", &path))?;
    files.push(path);
    Ok(())
}

/// Numbers of the pages that commands write, which say whose pages a folder has.
const NUMBERS: [&str; 3] = ["report.json", "fit.json", "search.json"];

/// Refuses the folder of a run, or of a prepared corpus, for files of another kind.
///
/// # Errors
/// [`Error::Refused`] with the file by which it is known.
pub fn refuse_run_or_corpus(folder: &Path) -> Result<()> {
    for (name, what) in [(kerple_run::PLAN_FILE, "a run"), ("meta.json", "a prepared corpus")] {
        if folder.join(name).is_file() {
            return Err(Error::Refused {
                message: format!("{} is the folder of {what}: it contains {name}", folder.display()),
                hint: "choose another folder with --out; one below it is fine".into(),
            });
        }
    }
    Ok(())
}

/// Refuses the folder of a run or a corpus, and a folder with pages that no report of kerple wrote, or with those of another
/// kind, whose numbers are not in the file `own`. Its `index.html` identifies who wrote the folder.
///
/// # Errors
/// [`Error::Refused`] with the file that is another's; a disk that does not answer.
pub fn refuse_foreign(folder: &Path, own: &str) -> Result<()> {
    refuse_run_or_corpus(folder)?;
    if let Some(other) = NUMBERS.iter().find(|name| **name != own && folder.join(name).exists()) {
        return Err(Error::Refused {
            message: format!("{} contains the pages of another command: {other}", folder.display()),
            hint: "choose another folder with --out, or remove its pages".into(),
        });
    }
    // How a page ends that was made before there was a mark.
    const UNMARKED: &str = "The same numbers are in <a href=\"report.json\">";
    let index = folder.join(INDEX);
    let (found, ours) = match kerple_run::files::read(&index) {
        Ok(page) => {
            let page = String::from_utf8_lossy(&page);
            (index, page.trim().is_empty() || page.contains(MARK) || page.contains(UNMARKED))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let others = [TEXT, "report.json"].map(|name| folder.join(name));
            let mut read = others.into_iter().filter_map(|other| {
                let text = kerple_run::files::read(&other).map_err(Error::io_while("reading", &other));
                Error::unless_absent(text).map(|text| Some((other, text?))).transpose()
            });
            let Some((other, text)) = read.next().transpose()? else { return Ok(()) };
            let ours = text.is_empty() || String::from_utf8_lossy(&text).contains(MARK);
            (other, ours)
        }
        // A folder that is a file, or one that cannot be read: writing will say so.
        Err(_) => return Ok(()),
    };
    if ours {
        return Ok(());
    }
    Err(Error::Refused {
        message: format!("{} already exists and is not a report of kerple", found.display()),
        hint: "choose another folder with --out, or move the file".into(),
    })
}

/// Removes figures that a former report in the folder shows and that are not `kept`. Its `report.md` names them, so it is to be
/// written after this; whatever else lies beside them is not ours.
///
/// # Errors
/// A file that cannot be read or removed.
pub fn remove_former_figures(folder: &Path, kept: &[PathBuf]) -> Result<()> {
    let page = folder.join(TEXT);
    let page = Error::unless_absent(kerple_run::files::read(&page).map_err(Error::io_while("reading", &page)))?
        .unwrap_or_default();
    let page = String::from_utf8_lossy(&page);
    let names = page.split("](figures/").skip(1).filter_map(|rest| rest.split_once(')')).map(|(name, _)| name);
    for name in names.filter(|name| name.ends_with(".svg") && !name.contains(['/', '\\'])) {
        let figure = folder.join("figures").join(name);
        if !kept.contains(&figure) {
            let removed = std::fs::remove_file(&figure).map_err(Error::io_while("removing", &figure));
            Error::unless_absent(removed)?;
        }
    }
    Ok(())
}

/// Rows as a table of comma-separated values with the names of their keys above; `name` is said where that fails.
///
/// # Errors
/// [`Error::Render`] of rows that are no rows of a table.
pub fn csv<Row: Serialize>(name: &'static str, rows: impl Iterator<Item = Row>) -> Result<Vec<u8>> {
    let wrong = |reason: String| Error::Render { page: name, reason };
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row).map_err(|error| wrong(error.to_string()))?;
    }
    writer.into_inner().map_err(|error| wrong(error.to_string()))
}
