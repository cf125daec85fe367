//! What is written in a run file: refusals in words, and labels.

use super::*;
use crate::encoding::RENAMED;
use crate::forms::QueryKeyMap;

fn read(text: &str) -> Result<Encoding, String> {
    serde_json::from_str::<Encoding>(text).map_err(|error| error.to_string())
}

#[test]
fn unknown_and_ill_typed_keys_are_refused() {
    for (text, says) in [
        (r#"{"kind":"kerple_log","r9":1.0}"#, "r9"),
        (r#"{"kind":"alibi","slope":1}"#, "slope"),
        (r#"{"kind":"none","x":1}"#, "x"),
        (r#"{"kind":"kerple_logg"}"#, "unknown encoding `kerple_logg`"),
        (r#"{"kind":"kerple_log","scale":"twice"}"#, "scale"),
        (r#"{"kind":"kerple_log","window":0}"#, "`window`"),
        (r#"{"kind":"kerple_log","sink_tokens":4}"#, "`sink_tokens`: first tokens stay visible under a window only"),
        (r#"{"kind":"kerple_log","window":8,"sink_tokens":0}"#, "`sink_tokens`: 0 is out of range"),
        (r#"{"kind":"kerple_log","window":8,"sink_tokens":65537}"#, "`sink_tokens`: 65537 is out of range"),
        (r#"{"kind":"kerple_log","window":8,"sink_tokens":-1}"#, "`sink_tokens`: invalid value: integer `-1`"),
        (r#"{"kind":"fire","window":8,"sink_tokens":4}"#, "`sink_tokens`: `fire` modifies the scores of a row"),
        (r#"{"kind":"cope","window":8,"sink_tokens":4}"#, "`sink_tokens`: `cope` modifies the scores of a row"),
        (
            r#"{"kind":"alibi","behind":0.5,"window":8,"sink_tokens":4}"#,
            "`sink_tokens`: a bias for keys after the query",
        ),
        (r#"{"kind":"kerple_log","window":-5}"#, "`window`: invalid value: integer `-5`, expected a whole number"),
        (r#"{"kind":"t5","num_buckets":7}"#, "`num_buckets`: 7 is out of range"),
        (r#"{"kind":"t5","num_buckets":64,"max_distance":32}"#, "`max_distance`: 32 must exceed num_buckets / 2 = 32"),
        (r#"{"kind":"fox","gate":"fixed"}"#, "`spans`: is missing"),
        (r#"{"kind":"fox","spans":[8,2]}"#, "`spans`: [8, 2] is out of range"),
        (r#"{"kind":"kerple_positions","kernel":"power"}"#, "`step_min`: is 0, but exponents below 1"),
        (r#"{"kind":"kerple_positions","step_max":1}"#, "`step_max`: 1 is out of range"),
        (r#"{"kind":"kerple_positions","step":"exp","step_min":0.1}"#, "`step_min`: has no effect"),
        (r#"{"kind":"kerple_positions","knots":4}"#, "`knots`: has no effect"),
        (r#"{"kind":"alibi","behind":2}"#, "`behind`: 2 is out of range, it must be between 0 and 1"),
        (r#"{"kind":"t5","num_buckets":6,"bidirectional":true}"#, "`num_buckets`: 6 is out of range"),
        (r#"{"kind":"t5","max_distance":8,"bidirectional":true}"#, "`max_distance`: 8 must exceed num_buckets / 4 = 8"),
        (r#"{"kind":"kerple_log","r1":"high"}"#, "`r1`: an initial value must be a number, a range [low, high]"),
        (r#"{"kind":"kerple_log","r1":[1,2,3]}"#, "`r1`: an initial value must be a number, a range [low, high]"),
        (r#"{"kind":"kerple_log","r1":null}"#, "`r1`: an initial value must be a number, a range [low, high]"),
        (r#"{"kind":"kerple_log","r1":[2,0]}"#, "`r1`: [2, 0] is not a range"),
        (
            r#"{"kind":"kerple_power","r2":[5,9]}"#,
            "`r2`: [5, 9] is out of range, allowed values are between 0.01 and 2",
        ),
        (r#"{"kind":"kerple_power","r2":2.5}"#, "`r2`: 2.5 is out of range, it must be between 0.01 and 2"),
        (r#"{"kind":"kerple_power","r1":-1}"#, "`r1`: -1 is out of range, it must be at least 0.01"),
        (r#"{"kind":"kerple_power","r1":{"std":-1}}"#, "`r1`: std is -1"),
        (r#"{"kind":"rotary","pct":1.5}"#, "`pct`: 1.5 is out of range, it must be above 0 and at most 1"),
        (r#"{"kind":"rotary","pct":1,"base":-1.0}"#, "`base`: -1 is out of range, it must be at least 1"),
        (r#"{"kind":"rotary","keep":0}"#, "`keep`: 0 is out of range, it must be above 0 and at most 1"),
        (r#"{"kind":"rotary","keep":1.5}"#, "`keep`: 1.5 is out of range, it must be above 0 and at most 1"),
        (r#"{"kind":"rotary","frequencies":[]}"#, "`frequencies`: no rate is above 0"),
        (r#"{"kind":"rotary","frequencies":[1,-0.1]}"#, "`frequencies`: -0.1 is out of range, rates must be between 0"),
        (r#"{"kind":"rotary","frequencies":[1],"keep":0.5}"#, "`frequencies`: keep changes rates"),
        (r#"{"kind":"rotary","frequencies":[1],"scaling":"yarn"}"#, "`frequencies`: scaling changes rates"),
        (r#"{"kind":"rotary","frequencies":[1],"base":500}"#, "`frequencies`: base changes rates"),
        (r#"{"kind":"bam","beta":-0.7}"#, "`beta`: -0.7 is out of range, it must be between 0 and 4"),
        (r#"{"kind":"bam","beta":[-0.7,1]}"#, "`beta`: -0.7 is out of range"),
        (r#"{"kind":"wall","rank":0}"#, "`rank`: 0 is out of range"),
        (r#"{"kind":"wall","g_max":0}"#, "`g_max`: 0 is out of range, it must be above 0"),
        (r#"{"kind":"wall","g_max":0.5,"gate":"bounded"}"#, "`g_max`: bounds a logarithm, and gates with `gate"),
        (r#"{"kind":"wall","spans":[16,64]}"#, "`spans`: is for gates with"),
        (r#"{"kind":"wall","gate":"bounded","spans":[15,64]}"#, "`spans`: [15, 64] is out of range"),
        (r#"{"kind":"wall","base":500}"#, "`base`: is the base of a rotation, and there is none"),
        (r#"{"kind":"wall","order":"rope_then_channel_decay","base":0}"#, "`base`: 0 is out of range"),
        (r#"{"kind":"wall","randomized":64}"#, "`randomized`: `wall` cannot be randomized"),
        (r#"{"kind":"selective_rope","rank":0}"#, "`rank`: 0 is out of range"),
        (r#"{"kind":"selective_rope","base":0}"#, "`base`: 0 is out of range"),
        (r#"{"kind":"selective_rope","scalar_gate":true}"#, "`scalar_gate`: goes with decays, and there are none"),
        (r#"{"kind":"selective_rope","randomized":64}"#, "`randomized`: `selective_rope` cannot be randomized"),
        (r#"{"kind":"rotary_positions","step_max":1}"#, "`step_max`: 1 is out of range, it must be above 1"),
        (r#"{"kind":"rotary_positions","step":"exp","step_min":0.1}"#, "`step_min`: has no effect"),
        (r#"{"kind":"kerple_positions","grid":2}"#, "`grid`: has no effect"),
        (r#"{"kind":"kerple_positions","kernel":"table","grid":3}"#, "`grid`: 3 is not a power of 2"),
        (r#"{"kind":"kerple_positions","kernel":"table","entries":1}"#, "`entries`: 1 is out of range"),
        (r#"{"kind":"pope","width":0}"#, "`width`: 0 is out of range"),
        (r#"{"kind":"pope","base":0}"#, "`base`: 0 is out of range"),
        (r#"{"kind":"fope","train_len":0}"#, "`train_len`: 0 is out of range"),
        (r#"{"kind":"fope","randomized":64}"#, "`randomized`: `fope` cannot be randomized"),
        (r#"{"kind":"grape_ap","features":0}"#, "`features`: 0 is out of range"),
        (r#"{"kind":"grape_ap","features":7}"#, "`features`: 7 is out of range, it must be even"),
        (r#"{"kind":"grape_ap","window":8,"sink_tokens":4}"#, "`sink_tokens`: `grape_ap` sums a bias over all tokens"),
        (r#"{"kind":"grape_ap","reach":8}"#, "`reach`: `grape_ap` measures distances by the content"),
        (r#"{"kind":"path","rank":0}"#, "`rank`: 0 is out of range"),
        (r#"{"kind":"path","conv":0}"#, "`conv`: 0 is out of range"),
        (r#"{"kind":"path","gate_scale":"inside"}"#, "`gate_scale`: has no effect without gates"),
        (r#"{"kind":"path","window":8,"sink_tokens":4}"#, "`sink_tokens`: `path` transforms keys by all tokens"),
        (r#"{"kind":"path","reach":8}"#, "`reach`: `path` measures distances by the content"),
        (r#"{"kind":"path","distance_cap":8}"#, "`distance_cap`: `path` does not change scores by a table"),
        (r#"{"kind":"path","randomized":64}"#, "`randomized`: `path` cannot be randomized"),
        (r#"{"kind":"inkling","rank":0}"#, "`rank`: 0 is out of range"),
        (r#"{"kind":"inkling","reach":0}"#, "`reach`: 0 is out of range"),
        (r#"{"kind":"inkling","log_scale":{"floor":0,"alpha":0.1}}"#, "`log_scale`: floor = 0 is out of range"),
        (r#"{"kind":"inkling","log_scale":{"floor":8,"alpha":-1}}"#, "`log_scale`: alpha = -1 is out of range"),
        (r#"{"kind":"inkling","randomized":64}"#, "`randomized`: `inkling` cannot be randomized"),
        (r#"{"kind":"kerple_log","reach":0}"#, "`reach`: a bias that ends at distance 0 is none"),
        (r#"{"kind":"kerple_log","reach":-1}"#, "`reach`: invalid value: integer `-1`, expected a whole number"),
        (
            r#"{"kind":"kerple_log","reach":1.5}"#,
            "`reach`: invalid type: floating point `1.5`, expected a whole number",
        ),
        (
            r#"{"kind":"kerple_log","reach":1048577}"#,
            "`reach`: 1048577 is out of range, it must be between 1 and 1048576",
        ),
        (r#"{"kind":"alibi","reach":64,"randomized":64}"#, "`reach`: distances are drawn from 64"),
        (r#"{"kind":"dape","base":{"kind":"alibi","reach":64}}"#, "unknown field `reach`"),
        (r#"{"kind":"bam","alpha":99}"#, "`alpha`: 99 is out of range, it must be between -20 and 20"),
        (r#"{"kind":"sinusoidal","base":0}"#, "`base`: 0 is out of range"),
        (r#"{"kind":"alibi","share":"layer"}"#, "`share`: `alibi` has no parameters that a layer could own"),
        (r#"{"kind":"learned","share":"layer"}"#, "`share`"),
        (r#"{"kind":"kernel","bias":"log(b"}"#, "`bias`"),
        (r#"{"kind":"kernel","start":0.5}"#, "`start`: initial values must be a list of numbers for all heads"),
        (r#"{"kind":"kernel","start":[]}"#, "`start`: initial values must be a list of numbers for all heads"),
        (r#"{"kind":"kernel","start":[[1,1],2]}"#, "`start`: initial values must be a list of numbers for all heads"),
        (
            r#"{"kind":"kernel","start":[1]}"#,
            "`start`: 1 values for 2 learned parameters; give a value for each of b, a",
        ),
        (r#"{"kind":"kernel","start":[[1,1],[1,1,1]]}"#, "`start`: 3 values of head 1 for 2 learned parameters"),
        (r#"{"kind":"kernel","start":[[1,1],[1,0.002]]}"#, "`start`: a of head 1 is 0.002, it must be at least 0.01"),
        (
            r#"{"kind":"kernel","bias":"power(a, p)","start":[1,2.5]}"#,
            "`start`: p is 2.5, it must be between 0.01 and 2",
        ),
        (r#"{"kind":"kernel","bias":"log(1, 2)","start":[1]}"#, "`start`: the expressions learn nothing"),
        (r#"{"kind":"kernel","bias":"log(b~1, a)","start":[1,1]}"#, "`start`: `log(b~1, a)` has starts of its own"),
        (r#"{"kind":"rotary","scaling":"yarm"}"#, "`scaling`: unknown scaling `yarm`, use one of linear"),
        (r#"{"kind":"rotary","scaling":{"kind":"linear","factor":0}}"#, "`scaling`: factor 0 is out of range"),
        (r#"{"kind":"alibi","scaling":"yarn"}"#, "scaling"),
        (r#"{"kind":"sandwich","features":7}"#, "`features`: 7 is out of range, it must be even"),
        (r#"{"kind":"sandwich","base":0}"#, "`base`: 0 is out of range"),
        (r#"{"kind":"shaw","max_distance":0}"#, "`max_distance`: 0 is out of range"),
        (r#"{"kind":"cope","npos_max":1}"#, "`npos_max`: 1 is out of range, it must be between 2"),
        (r#"{"kind":"cope","randomized":64}"#, "`randomized`: `cope` cannot be randomized: its positions depend"),
        (r#"{"kind":"none","randomized":64}"#, "`randomized`: `none` cannot be randomized: no position enters"),
        (r#"{"kind":"fire","scale":"inside"}"#, "`scale`: `fire` adds no bias table to scores"),
        (r#"{"kind":"kerple_weight","scale":"inside"}"#, "`scale`: `kerple_weight` adds no bias table"),
        (r#"{"kind":"dape","base":"none","scale":"inside"}"#, "`scale`: `dape` adds no bias table"),
        (r#"{"kind":"xpos","gamma":0}"#, "`gamma`: 0 is out of range, it must be above 0"),
        (r#"{"kind":"xpos","scale_base":5}"#, "`scale_base`: products would decay by e^-0.25"),
        (r#"{"kind":"xpos","randomized":64}"#, "`randomized`: `xpos` cannot be randomized: its products decay"),
        (
            r#"{"kind":"kerple_log","randomized":1048577}"#,
            "`randomized`: 1048577 is out of range, it must be between 1 and 1048576",
        ),
        (r#"{"kind":"alibi","randomized":9223372036854775807}"#, "`randomized`: 9223372036854775807 is out of range"),
        (r#"{"kind":"learned","positions":0}"#, "`positions`: 0 is out of range"),
        (r#"{"kind":"learned","positions":1099511627776}"#, "`positions`: 1099511627776 is out of range"),
        (
            r#"{"kind":"t5","num_buckets":4611686018427387904,"max_distance":9223372036854775807}"#,
            "`num_buckets`: 4611686018427387904 is out of range, it must be between 2 and 65536",
        ),
        (r#"{"kind":"sine_spe","num_realizations":65536}"#, "`num_realizations`: 65536 is out of range"),
        (r#"{"kind":"sine_spe","num_sines":65537}"#, "`num_sines`: 65537 is out of range"),
        (r#"{"kind":"conv_spe","kernel_size":[65537]}"#, "`kernel_size`: 65537 is out of range"),
        (
            r#"{"kind":"conv_spe","kernel_size":[3,3],"size":[9,1099511627776]}"#,
            "`size`: 1099511627776 is out of range",
        ),
        (r#"{"window":5}"#, "kind"),
        ("5", "kind"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.contains(says), "{text}: {error}");
        for jargon in ["untagged", "usize", "f64", "variant", "null,", "unit"] {
            assert!(!error.contains(jargon) || text.contains("\"scale\""), "{text}: {error}");
        }
    }
}

/// Numbers that JSON has no form for, as TOML brings them.
#[test]
fn numbers_that_are_not_finite_are_refused_by_name() {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, MapDeserializer};
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for key in ["window", "r1"] {
            let pairs = [(key, value)].into_iter();
            let map = MapDeserializer::<_, Error>::new(pairs);
            let error = Encoding::deserialize(map).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`: {value} is not a finite number")), "{error}");
        }
    }
    let text: serde::de::value::StrDeserializer<Error> = "alibi".into_deserializer();
    assert_eq!(Encoding::deserialize(text).unwrap().label(), "alibi");
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let odd = Geometry::new(3, 5, 32);
    let one = Geometry::new(4, 1, 32);
    for (text, geometry, says) in [
        (r#"{"kind":"rotary","pct":0.1}"#, GEOMETRY, "`pct`: 0.1 of 16 features per head is less than one pair"),
        (r#"{"kind":"rotary","keep":0.1}"#, GEOMETRY, "`keep`: 0.1 of 8 pairs is less than one"),
        (r#"{"kind":"rotary","frequencies":[1,0.1]}"#, GEOMETRY, "`frequencies`: 2 rates, but 8 pairs"),
        (r#"{"kind":"rotary"}"#, one, "`kind`: rotary rotates pairs of features, but heads have 1"),
        (
            r#"{"kind":"transformer_xl"}"#,
            odd,
            "`kind`: sinusoids need an even number of features over all heads, got 15",
        ),
        (r#"{"kind":"sinusoidal"}"#, odd, "`kind`: sinusoidal rows need an even model width, got 15"),
        (
            r#"{"kind":"learned","positions":31}"#,
            GEOMETRY,
            "`positions`: 31 rows are too few for training sequences of 32",
        ),
        (
            r#"{"kind":"alibi","randomized":31}"#,
            GEOMETRY,
            "`randomized`: 31 positions are fewer than the 32 tokens of a training sequence",
        ),
        (
            r#"{"kind":"sine_spe","num_sines":65536,"num_realizations":4096}"#,
            GEOMETRY,
            "`num_realizations`: the noise of 65536 sines with 4096 realizations would need 34360000512 values",
        ),
        (
            r#"{"kind":"conv_spe","kernel_size":[65536],"num_realizations":4096}"#,
            GEOMETRY,
            "`num_realizations`: the noise that a few positions reach would need",
        ),
        (
            r#"{"kind":"learned","randomized":64}"#,
            GEOMETRY,
            "`randomized`: positions are drawn from 64, but `learned` has 32",
        ),
    ] {
        let refusal = read(text).unwrap().check(&geometry).expect_err(text);
        assert!(refusal.to_string().contains(says), "{text}: {refusal}");
        assert!(!refusal.hint.is_empty());
    }
    let mut made = Encoding::from(Method::named("alibi").unwrap());
    made.window = Some(0);
    assert!(made.check(&GEOMETRY).is_err(), "what code made is checked as what was read");
    for encoding in all() {
        assert_eq!(encoding.check(&GEOMETRY), Ok(()), "{}", encoding.label());
    }
    assert_eq!(read(r#"{"kind":"rotary","pct":0.125}"#).unwrap().check(&GEOMETRY), Ok(()));
    assert_eq!(read(r#"{"kind":"learned","positions":32}"#).unwrap().check(&GEOMETRY), Ok(()));
}

/// Settings of every key, several values each.
fn variants() -> Vec<Encoding> {
    let own: &[(&str, &[&str])] = &[
        ("learned", &[r#""positions":9"#, r#""positions":90"#]),
        ("sinusoidal", &[r#""base":500"#, r#""base":500.5"#]),
        ("rotary", &[r#""scaling":"yarn""#, r#""scaling":{"kind":"yarn","factor":4}"#, r#""scaling":"ntk""#]),
        ("rotary", &[r#""keep":0.75"#, r#""keep":0.5"#, r#""keep":0.5,"scaling":"yarn""#]),
        ("rotary", &[r#""frequencies":[1,0.1,0]"#, r#""frequencies":[1,0.1,0.01],"width":6"#]),
        ("wall", &[r#""rank":4"#, r#""g_max":0.86"#, r#""scalar_gate":true"#, r#""gate_heads":"kv""#]),
        ("wall", &[r#""gate":"bounded""#, r#""gate":"bounded","rank":4"#, r#""gate":"bounded","spans":[16,99.5]"#]),
        ("wall", &[r#""order":"rope_then_channel_decay""#, r#""order":"rope_then_channel_decay","base":500"#]),
        ("selective_rope", &[r#""rank":4"#, r#""base":500"#, r#""bias":false"#, r#""gate":true"#, r#""decay":true"#]),
        ("selective_rope", &[r#""decay":true,"scalar_gate":true"#]),
        ("rotary_positions", &[r#""base":500"#, r#""step":"softplus""#, r#""step_max":3.5"#, r#""step_min":0.5"#]),
        ("pope", &[r#""base":500"#, r#""width":6"#, r#""clamp_delta":true"#]),
        ("fope", &[r#""base":500"#, r#""train_len":40"#, r#""zero_pad":false"#]),
        ("grape_ap", &[r#""features":4"#, r#""relative":true"#]),
        ("path", &[r#""rank":4"#, r#""conv":1"#, r#""gate":true"#, r#""gate":true,"gate_scale":"inside""#]),
        ("inkling", &[r#""rank":4"#, r#""reach":9"#, r#""log_scale":{"floor":8,"alpha":0.1}"#]),
        ("bam", &[r#""alpha":1"#, r#""beta":[0,1]"#, r#""theta_mu":0"#, r#""theta_mu":0.5"#]),
        ("rotary", &[r#""randomized":64"#, r#""randomized":640"#]),
        (
            "t5",
            &[
                r#""randomized":64"#,
                r#""randomized":64,"window":64"#,
                r#""reach":64"#,
                r#""randomized":640,"reach":64"#,
            ],
        ),
        ("kerple_log", &[r#""reach":6"#, r#""reach":64"#, r#""reach":640"#, r#""window":64,"reach":64"#]),
        ("rotary", &[r#""pct":0.5"#, r#""base":500"#, r#""pct":0.5,"base":500"#, r#""pct":0.25,"base":1e6"#]),
        ("alibi", &[r#""behind":0.5"#, r#""behind":1"#]),
        (
            "t5",
            &[
                r#""bidirectional":true"#,
                r#""num_buckets":16"#,
                r#""max_distance":16,"num_buckets":8"#,
                r#""max_distance":168"#,
            ],
        ),
        ("kerple_log", &[r#""r1":1"#, r#""r2":1"#, r#""r1":[0.5,1]"#, r#""r1":[0.5,1.1]"#, r#""r1":{"std":1}"#]),
        ("kerple_power", &[r#""r1":1,"r2":1.5"#, r#""r1":1.1,"r2":1.5"#, r#""r2":[1e-7,1]"#]),
        (
            "kernel",
            &[
                r#""bias":"power(a, p)""#,
                r#""bias":"power(a, p)","keep":"smooth""#,
                r#""bias":"power(a, p=1)""#,
                r#""bias":"power(a~1, p=1)""#,
                r#""bias":"power(a, p=1) + log(b, a)""#,
                r#""bias":"power(a, p=1) + log(b~0.5, a) + power(a~0.25, p=1.25)""#,
                r#""bias":"power(a, p=1) + log(b~0.5, a) + power(a~0.25, p=1.75)""#,
                r#""weight":"power(a, p)""#,
                r#""weight":"exp(1, a, p)""#,
                r#""bias":"log(b, a)","weight":"exp(1, a, p)""#,
                r#""start":[0.5,0.25]"#,
                r#""start":[[0.5,0.25],[0.5,0.25],[0.5,0.25],[0.5,0.25]]"#,
                r#""start":[[0.5,0.25],[0.5,0.75],[0.5,0.25],[0.5,0.25]]"#,
                r#""bias":"power(1, 2.5)","unproven":true"#,
            ],
        ),
    ];
    let own = own.iter().flat_map(|(kind, keys)| keys.iter().map(move |keys| format!(r#"{{"kind":"{kind}",{keys}}}"#)));
    let mut found: Vec<Encoding> =
        own.map(|text| read(&text).unwrap_or_else(|error| panic!("{text}: {error}"))).collect();
    found.extend(all());
    found
}

#[test]
fn labels_tell_encodings_apart_and_fit_a_file_name() {
    let mut seen: Vec<(String, Encoding)> = Vec::new();
    for plain in variants() {
        for (window, scale, emulate, clamp) in [
            (None, BiasScale::After, Emulate::Exact, Clamp::Projected),
            (Some(64), BiasScale::After, Emulate::Bf16, Clamp::Projected),
            (Some(640), BiasScale::Inside, Emulate::Exact, Clamp::ForwardOnly),
        ] {
            for share in [ParameterShare::Model, ParameterShare::Layer] {
                let window = window.or(plain.window);
                let encoding = Encoding { window, scale, emulate, clamp, share, ..plain.clone() };
                if seen.iter().all(|(_, other)| *other != encoding) {
                    seen.push((encoding.label(), encoding));
                }
            }
        }
    }
    for (label, encoding) in &seen {
        assert!(label.chars().all(|c| c.is_ascii_alphanumeric() || "._=-".contains(c)), "{label}");
        assert!(label.len() <= 160 && label.starts_with(encoding.method.kind()), "{label}");
        let same = seen.iter().filter(|(other, _)| other == label);
        assert!(same.into_iter().all(|(_, other)| other == encoding), "{label} stands for two encodings");
    }
    for kind in METHODS {
        assert_eq!(Encoding::from(Method::named(kind).unwrap()).label(), kind);
    }
    for (text, label) in [
        (r#"{"kind":"t5","num_buckets":16,"max_distance":64}"#, "t5-max_distance=64-num_buckets=16"),
        (r#"{"kind":"rotary","base":500000.0}"#, "rotary-base=500000"),
        (r#"{"kind":"rotary","scaling":"yarn","randomized":64}"#, "rotary-scaling=yarn-randomized64"),
        (r#"{"kind":"rotary","scaling":{"kind":"linear","factor":4}}"#, "rotary-scaling=linear.factor4"),
        (r#"{"kind":"kerple_log","r1":[0.5,1],"window":64,"share":"layer"}"#, "kerple_log-r1=0.5..1-window64-layer"),
        (r#"{"kind":"kerple_log","window":64,"sink_tokens":4,"reach":32}"#, "kerple_log-window64-sink_tokens4-reach32"),
        (r#"{"kind":"kerple_log","reach":64,"share":"layer"}"#, "kerple_log-reach64-layer"),
        (r#"{"kind":"inkling","reach":64}"#, "inkling-reach=64"),
        (r#"{"kind":"kernel","bias":"power(a, p)"}"#, "kernel-bias=power_a_p."),
        // folders and rows of results are called by these
        (
            r#"{"kind":"sine_spe","num_sines":10,"num_realizations":32,"gating":"jax","share":"layer"}"#,
            "sine_spe-gating=jax-realisations=32-waves=10-layer",
        ),
        (
            r#"{"kind":"conv_spe","kernel_size":[32],"num_realizations":32,"noise":"shared"}"#,
            "conv_spe-noise=shared-realisations=32-taps=32",
        ),
        (r#"{"kind":"fire","hidden":8,"init_l":64}"#, "fire-threshold=64-width=8"),
        (r#"{"kind":"dape","base":{"kind":"fire","hidden":8,"init_l":64}}"#, "dape-base=fire.threshold64.width8"),
        (r#"{"kind":"cope","npos_max":9}"#, "cope-positions=9"),
    ] {
        assert!(read(text).unwrap().label().starts_with(label), "{}", read(text).unwrap().label());
    }
}

#[test]
fn names_that_were_renamed_are_refused_with_the_new_ones() {
    for renamed in RENAMED {
        let kind = if METHODS.contains(&renamed.table) { renamed.table } else { "kerple_log" };
        let value = renamed.value.map_or_else(|| "1".to_owned(), |value| format!("\"{value}\""));
        let keys = format!(r#"{{"kind":"{kind}","{}":{value}}}"#, renamed.key);
        let error = read(&keys).unwrap_err();
        assert!(error.contains(&format!("`{}`: ", renamed.key)) && error.contains(&renamed.to_string()), "{error}");
        if kind == "fire" {
            let error = read(&format!(r#"{{"kind":"dape","base":{keys}}}"#)).unwrap_err();
            assert!(error.starts_with("`base`") && error.contains(&renamed.to_string()), "{error}");
        }
    }
}

proptest! {
    #[test]
    fn equal_labels_mean_equal_encodings(
        r in prop::collection::vec((0u8..4, 0.01f64..2.0, 0.01f64..2.0), 2..=2), window in prop::option::of(1usize..40),
        other in prop::collection::vec((0u8..4, 0.01f64..2.0, 0.01f64..2.0), 2..=2), steps in 1u32..50,
    ) {
        // few values, so that pairs of equal ones occur
        let round = |x: f64| (x * f64::from(steps)).ceil() / f64::from(steps);
        let init = |&(which, x, y): &(u8, f64, f64)| match which {
            0 => ParameterInit::Constant(round(x).min(2.0)),
            1 => ParameterInit::Uniform([round(x).min(round(y)).min(2.0), round(x).max(round(y))]),
            2 => ParameterInit::Normal { std: round(x) },
            _ => ParameterInit::Uniform([0.0, 2.0]),
        };
        let encoding = |r: &[(u8, f64, f64)]| Encoding {
            window,
            ..Encoding::from(Method::KerplePower(kerple::KerplePower { r1: init(&r[0]), r2: init(&r[1]) }))
        };
        let (a, b) = (encoding(&r), encoding(&other));
        prop_assert_eq!(a.label() == b.label(), a == b, "{} {}", a.label(), b.label());
        let back: Encoding = serde_json::from_str(&serde_json::to_string(&a).unwrap()).unwrap();
        prop_assert_eq!(back.label(), a.label());
    }
}

#[test]
fn a_form_enters_where_its_method_says() {
    let over = |base: &str| read(&format!(r#"{{"kind":"dape","base":{base}}}"#)).unwrap();
    let bases = [r#""alibi""#, r#""none""#, r#""rotary""#, r#""fire""#, r#"{"kind":"t5","bidirectional":true}"#];
    for encoding in variants().into_iter().chain(bases.map(over)) {
        let has = |table: &DistanceTable| TableContents {
            bias: table.bias.is_some(),
            weight: table.weight.is_some(),
            sides: table.sides,
        };
        let made = match &encoding.form(&GEOMETRY, &encoding.initial(&GEOMETRY, 1), 8) {
            EncodingForm::Nothing => Injection::Nowhere,
            EncodingForm::Absolute(_) => Injection::Embeddings,
            EncodingForm::Rotary(rotary) => Injection::Rotation { decays: !rotary.decay_rates.is_empty() },
            EncodingForm::Table(table) => Injection::Scores(has(table)),
            EncodingForm::ScoreMod(ScoreModForm { table, rotary, .. }) => {
                Injection::ScoreMod { tables: has(table), rotates: rotary.is_some() }
            }
            EncodingForm::Gates(gates) => Injection::Gates { kernel: gates.kernel.is_some() },
            EncodingForm::FeatureGates(gates) => {
                Injection::FeatureGates { scalar: gates.scalar, rotates: gates.rotary.is_some() }
            }
            EncodingForm::ContentRotation(rotation) => Injection::ContentRotation {
                decays: rotation.decay.is_some(),
                scalar: rotation.decay.as_ref().is_some_and(|decay| decay.scalar),
            },
            EncodingForm::QueryKeyMap(map) => Injection::QueryKeyMap { widens: matches!(map, QueryKeyMap::Polar(_)) },
            EncodingForm::RelativeBias(_) => Injection::RelativeBias,
            EncodingForm::PathBias(_) => Injection::PathBias,
            EncodingForm::Householder(map) => Injection::Householder { gates: map.gate_factor.is_some() },
            EncodingForm::Code(_) => Injection::Code,
        };
        assert_eq!(encoding.entry(), made, "{}", encoding.label());
    }
}

#[test]
#[should_panic(expected = "silent learns a table without a Jacobian")]
fn a_learned_table_without_derivatives_is_no_method() {
    struct Silent;
    impl Positional for Silent {
        fn description(&self) -> Description {
            Description { name: "silent", ..Method::named("alibi").unwrap().description() }
        }
        fn entry(&self) -> Injection {
            Injection::Scores(TableContents::default())
        }
        fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
            vec![EncodingParameter::matrix("weight", [1, geometry.heads], 1.0)]
        }
        fn shares(&self) -> &'static [ParameterShare] {
            ParameterShare::SHARED
        }
        fn randomized(&self) -> Randomized {
            Randomized::Distances
        }
        fn form(&self, _: &FormInputs) -> EncodingForm {
            EncodingForm::Table(DistanceTable::default())
        }
    }
    let positions = FormPositions::from(4);
    Silent.jacobian(&FormInputs { geometry: &GEOMETRY, values: &[vec![0.0; 4]], positions, emulate: Emulate::Exact });
}

/// A key that changes nothing is refused, so every method but those that add biases by distance.
#[test]
fn only_tables_of_biases_are_scaled_inside() {
    for kind in METHODS {
        let keys = if kind == "kernel" { r#""bias":"log(b, a)","# } else { "" };
        let inside = read(&format!(r#"{{"kind":"{kind}",{keys}"scale":"inside"}}"#));
        let plain = read(&format!(r#"{{"kind":"{kind}",{keys}"scale":"after"}}"#)).unwrap();
        let bias = plain.table(&GEOMETRY, &plain.initial(&GEOMETRY, 1), 8).bias;
        assert_eq!(inside.is_ok(), bias.is_some(), "{kind}");
    }
}

#[test]
fn a_named_kernel_is_the_expression_of_a_run_file() {
    for (named, keys, names) in [
        ("kerple_log", r#""bias":"log(b, a)""#, vec!["b", "a"]),
        ("gaussian_weight", r#""weight":"gauss(1, a)""#, vec!["a"]),
        (
            "kerple_bias_weight",
            r#""bias":"power(a, p)","weight":"exp(1, a, p)""#,
            vec!["bias.a", "bias.p", "weight.a", "weight.p"],
        ),
    ] {
        for emulate in [Emulate::Exact, Emulate::Bf16] {
            let named = Encoding { emulate, ..Encoding::from(Method::named(named).unwrap()) };
            let text = format!(r#"{{"kind":"kernel",{keys}}}"#);
            let expression = Encoding { emulate, ..serde_json::from_str(&text).unwrap() };
            let found: Vec<String> = expression.parameters(&GEOMETRY).into_iter().map(|p| p.name).collect();
            assert_eq!(found, names, "{text}");
            let mut values = named.initial(&GEOMETRY, 5);
            values.iter_mut().flatten().for_each(|value| *value = value.max(0.01)); // where the ranges agree
            assert_eq!(named.table(&GEOMETRY, &values, 700), expression.table(&GEOMETRY, &values, 700), "{text}");
            let slopes = [&named, &expression].map(|encoding| encoding.table_jacobian(&GEOMETRY, &values, 700));
            assert_eq!(slopes[0], slopes[1], "{text}");
        }
    }
}

#[test]
fn expressions_must_be_proven_or_admitted() {
    let read = |text: &str| serde_json::from_str::<Encoding>(text);
    assert!(read(r#"{"kind":"kernel","bias":"power(1, 2.5)"}"#).is_err());
    assert!(read(r#"{"kind":"kernel","bias":"power(1, 2.5)","unproven":true}"#).is_ok());
    assert!(read(r#"{"kind":"kernel","bias":"log(b"}"#).unwrap_err().to_string().contains("bias"));
}

#[test]
fn dape_takes_bases_that_add_a_bias_and_refuses_others() {
    for base in
        [r#""alibi""#, r#""t5""#, r#""none""#, r#""rotary""#, r#""fire""#, r#"{"kind":"kernel","bias":"log(b, a)"}"#]
    {
        let encoding = read(&format!(r#"{{"kind":"dape","base":{base}}}"#)).unwrap();
        let written = serde_json::to_string(&encoding).unwrap();
        assert_eq!(read(&written).unwrap(), encoding, "{written}");
    }
    for (keys, said) in [
        (r#""base":"sinusoidal""#, "is added to the embeddings"),
        (r#""base":"xpos""#, "decays features of queries and keys"),
        (r#""base":"kerple_weight""#, "multiplies scores"),
        (r#""base":"dape""#, "already changes all heads together"),
        (r#""base":"alibie""#, "unknown encoding `alibie`"),
        (r#""base":{"kind":"alibi","r1":1}"#, "unknown field"),
        (r#""base":{"kind":"fire","hidden":0}"#, "`hidden`: 0 is out of range"),
        (r#""base":"none","variant":"concat""#, "there is one variant"),
        (r#""kernel":2"#, "it must be odd"),
        (r#""hidden":0"#, "0 is out of range"),
    ] {
        let error = read(&format!(r#"{{"kind":"dape",{keys}}}"#)).unwrap_err();
        assert!(error.contains(said), "{keys}: {error}");
    }
}

/// What the paper counts: 1,196 values a layer beside those of the base.
#[test]
fn dape_learns_as_many_values_as_published() {
    let geometry = Geometry::new(12, 64, 512);
    let count = |text: &str| serde_json::from_str::<Encoding>(text).unwrap().parameter_count(&geometry, 12);
    assert_eq!(count(r#"{"kind":"dape","base":"alibi"}"#), 14_352);
    assert_eq!(count(r#"{"kind":"dape"}"#), 14_352 + 12 * 24);
    assert_eq!(count(r#"{"kind":"fire"}"#), 12 * (2 + 64 + 12 * 32 + 12));
}

/// With H = 3, M = 12 and the values of keys: what a description says is learned beside a base or steps is what there is.
#[test]
fn descriptions_count_what_is_learned() {
    let value = |name: &str| match name {
        "H" => 3,
        "hidden" => 5,
        "kernel" | "entries" => 7,
        "rises" => 4,
        number => number.parse().unwrap(),
    };
    let said = |encoding: &Encoding| -> usize {
        let learned = encoding.method.description().learned.replace("(knots + 1)", "rises");
        let (_, counts) = learned.rsplit_once(": ").unwrap();
        let counts = counts.strip_suffix(" per layer").unwrap().split(" + ");
        counts.map(|product| product.split(' ').map(value).product::<usize>()).sum()
    };
    let geometry = Geometry::new(3, 4, 64);
    let steps = 3 * (12 + 1);
    for (keys, others) in [
        (r#""kind":"dape","base":"alibi","hidden":5"#, 0),
        (r#""kind":"dape","base":"alibi","hidden":5,"kernel":7"#, 0),
        (r#""kind":"dape","base":"alibi","hidden":5,"variant":"add_residual""#, 0),
        (r#""kind":"dape","base":"alibi","hidden":5,"kernel":7,"variant":"bias_only""#, 0),
        (r#""kind":"dape","base":"none","hidden":5"#, 0),
        (r#""kind":"dape","base":"kerple_log","hidden":5,"variant":"concat""#, 2 * 3),
        (r#""kind":"kerple_positions""#, steps),
        (r#""kind":"kerple_positions","kernel":"power","step_min":0.1"#, steps),
        (r#""kind":"kerple_positions","kernel":"log3","step_min":0.1"#, steps),
        (r#""kind":"kerple_positions","kernel":"spline","knots":3"#, steps),
        (r#""kind":"kerple_positions","kernel":"table","entries":7"#, steps),
    ] {
        let encoding = read(&format!("{{{keys}}}")).unwrap();
        let learned: usize = encoding.parameters(&geometry).iter().map(EncodingParameter::len).sum();
        assert_eq!(said(&encoding) + others, learned, "{keys}");
    }
}

/// First tokens are written and read again; a model without a window has none to keep, and a whole training sequence of them
/// is refused.
#[test]
fn first_tokens_belong_to_a_window() {
    let encoding = read(r#"{"kind":"rotary","window":64,"sink_tokens":4}"#).unwrap();
    assert_eq!((encoding.window, encoding.sink_tokens), (Some(64), Some(4)));
    assert_eq!(read(&serde_json::to_string(&encoding).unwrap()).unwrap(), encoding);
    assert_eq!(encoding.with_window(Some(9)).sink_tokens, Some(4));
    assert_eq!(encoding.with_window(None), read(r#"{"kind":"rotary"}"#).unwrap());
    assert!(encoding.check(&Geometry::new(2, 8, 5)).is_ok());
    let error = encoding.check(&Geometry::new(2, 8, 4)).unwrap_err();
    assert_eq!(
        error.line().split(';').next(),
        Some("`sink_tokens`: 4 first tokens are all tokens of a training sequence of 4")
    );
}
