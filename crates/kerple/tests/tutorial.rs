//! The commands of `docs/tutorial.md` work, one after the other, at a smaller scale. `KERPLE_REFRESH=1` runs them as they are
//! shown, and writes into the page what they print; digits differ from machine to machine, so that is not compared.

use crate::common::{Place, document, expect_document, with_output, words};

const PAGE: &str = "docs/tutorial.md";

#[test]
fn every_command_of_the_tutorial_works() {
    let refresh = std::env::var_os("KERPLE_REFRESH").is_some();
    let page = std::fs::read_to_string(document(PAGE)).unwrap();
    let place = Place::new();
    let (_, toml) = page.split_once("```toml\n").unwrap();
    let (toml, _) = toml.split_once("```").unwrap();
    place.write("run.toml", if refresh { toml.to_owned() } else { toml.replace("steps = 400", "steps = 20") });
    let shown = with_output(&page, |command| {
        let printed = place.ok(&words(command));
        assert!(!printed.trim().is_empty(), "{command}");
        printed
    });
    assert!(page.matches("\n$ kerple ").count() >= 7);
    if refresh {
        expect_document(PAGE, &shown);
    }
}
