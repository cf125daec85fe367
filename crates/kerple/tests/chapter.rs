//! Every command shown in `docs/kernels.md` prints what the chapter shows, and its picture is what the command draws.
//!
//! After a change of wording, `KERPLE_REFRESH=1 cargo test --release -p kerple --test chapter` writes the new output
//! into the chapter.

use crate::common::{Place, document, expect_document, with_output, words};
use kerple_core::calculus::expr::Expr;

#[test]
fn the_chapter_shows_true_output() {
    let chapter = std::fs::read_to_string(document("docs/kernels.md")).unwrap();
    assert!(chapter.matches("\n$ kerple kernel ").count() > 5);
    let place = Place::new();
    expect_document("docs/kernels.md", &with_output(&chapter, |command| place.ok(&words(command))));
    assert!(chapter.contains(&Expr::parse("power(1, 2.5)").unwrap_err().to_string()));
}

#[test]
fn the_chapters_picture_is_its_plot() {
    let chapter = std::fs::read_to_string(document("docs/kernels.md")).unwrap();
    let before = chapter.split("`--svg FILE` draws the same picture").next().unwrap();
    let command = before.rsplit("$ kerple ").next().unwrap().lines().next().unwrap();
    let place = Place::new();
    let svg = ["--svg", "kernels.svg"];
    place.ok(&words(command).into_iter().chain(svg).collect::<Vec<_>>());
    expect_document("docs/kernels.svg", &place.read("kernels.svg"));
}
