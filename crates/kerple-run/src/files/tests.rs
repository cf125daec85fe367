use super::*;
use std::process::Command;

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The number of a process that has ended.
fn dead() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[cfg(unix)]
fn pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn the_new_takes_the_place_of_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    replace(&path, b"old").unwrap();
    replace(&path, b"new").unwrap();
    assert_eq!((read(&path).unwrap(), read_text(&path).unwrap()), (b"new".to_vec(), "new".to_owned()));
    assert_eq!(names(folder.path()), ["a.json"]);
    assert!(is_file(&path).unwrap() && is_there(&path).unwrap() && !is_folder(&path).unwrap());
    assert!(!is_there(&path.join("below a file")).unwrap(), "nothing can be there");
}

#[test]
#[cfg(unix)]
fn permissions_and_links_stay() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("file"), folder.path().join("link"));
    replace(&path, b"").unwrap();
    let made = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    File::create(folder.path().join("usual")).unwrap();
    assert_eq!(made, fs::metadata(folder.path().join("usual")).unwrap().permissions().mode() & 0o777);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    replace(&link, b"through the link").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(read(&path).unwrap(), b"through the link");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_neither_read_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    pipe(&at("pipe"));
    std::os::unix::fs::symlink("pipe", at("link to a pipe")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("link to nothing")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let before = names(folder.path());
    for (name, words) in [
        ("pipe", "the path is a pipe, not a regular file"),
        ("link to a pipe", "the path is a pipe, not a regular file"),
        ("socket", "the path is a socket, not a regular file"),
        ("folder", "is a directory"),
    ] {
        let opened = [open(&at(name)).unwrap_err(), append(&at(name)).unwrap_err()];
        for error in opened.into_iter().chain([read(&at(name)).unwrap_err(), replace(&at(name), b"x").unwrap_err()]) {
            assert_eq!(error.to_string(), words, "{name}");
        }
    }
    assert_eq!(replace(&at("link to nothing"), b"x").unwrap_err().to_string(), "the link points to nothing");
    assert_eq!(
        replace(Path::new("/dev/null"), b"x").unwrap_err().to_string(),
        "the path is a device, not a regular file"
    );
    assert!(replace(&at(".."), b"x").is_err() && replace(Path::new(""), b"x").is_err());
    assert_eq!(names(folder.path()), before);
}

/// The file behind a program's stdout has a name that others know; it keeps it.
#[test]
#[cfg(target_os = "linux")]
fn open_streams_are_not_replaced() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("redirected")).unwrap();
    for path in [format!("/dev/fd/{}", file.as_raw_fd()), format!("/proc/self/fd/{}", file.as_raw_fd())] {
        assert!(replace(Path::new(&path), b"x").unwrap_err().to_string().contains("open stream"), "{path}");
    }
    assert_eq!(file.metadata().unwrap().len(), 0);
    replace(&folder.path().join("redirected"), b"by its name").unwrap();
}

#[test]
fn only_what_the_dead_have_left_is_swept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut living = Command::new("sleep").arg("60").spawn().unwrap();
    let (left, locked) = (format!(".7-{}.kerple", dead()), format!(".b-{}.kerple", dead()));
    let ours = format!(".c-{}.kerple", std::process::id());
    let kept = [
        format!(".7-{}.kerple", living.id()),
        format!(".a.json-{}.partial", dead()),
        format!("a.json-{}.kerple", dead()),
        ".a.json-x.kerple".to_owned(),
    ];
    kept.iter().chain([&left, &locked, &ours]).for_each(|name| fs::write(at(name), "half").unwrap());
    let holder = File::open(at(&locked)).unwrap();
    holder.lock().unwrap();
    #[cfg(unix)]
    pipe(&at(&format!(".p-{}.kerple", dead())));
    let mut found: Vec<_> = abandoned(folder.path(), "kerple").into_iter().map(|(name, _)| name).collect();
    found.sort();
    assert_eq!(found, ["7", "c"], "the number of an earlier process may be this one's");
    replace(&at("a.json"), b"whole").unwrap();
    let after = names(folder.path());
    assert!(kept.iter().chain([&locked]).all(|name| after.contains(name)), "{after:?}");
    assert!(!after.contains(&left) && !after.contains(&ours), "{after:?}");
    drop(holder);
    living.kill().unwrap();
    living.wait().unwrap();
    replace(&at("a.json"), b"whole").unwrap();
    assert!(!names(folder.path()).contains(&locked) && !names(folder.path()).contains(&kept[0]));
}

#[test]
fn many_may_write_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one");
    std::thread::scope(|scope| {
        for letter in b'a'..b'i' {
            let path = &path;
            scope.spawn(move || (0..50).for_each(|_| replace(path, &[letter; 4096]).unwrap()));
        }
    });
    let content = read(&path).unwrap();
    assert!(content.len() == 4096 && content.iter().all(|byte| *byte == content[0]));
    assert_eq!(names(folder.path()), ["one"]);
}

#[test]
#[cfg(unix)]
fn a_disk_that_does_not_answer_is_no_empty_place() {
    // a name that no disk can hold is an error of asking, as EIO would be
    let unanswered = PathBuf::from("x".repeat(5000));
    assert!(look(&unanswered).is_err() && is_there(&unanswered).is_err() && is_folder(&unanswered).is_err());
    assert_eq!(look(Path::new("/nowhere/at/all")).unwrap().map(|about| about.len()), None);
}
