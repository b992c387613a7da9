use http::header::{AUTHORIZATION, CONTENT_LENGTH, SET_COOKIE};
use proptest::prelude::*;

use super::*;

fn redactor<S: AsRef<[u8]>>(secrets: &[S]) -> Redactor {
    Redactor::new(secrets.iter().map(|secret| encode::Bytes::new(secret.as_ref().to_vec())))
}

/// What comes out at once for each part, and at the end.
fn streamed(redactor: &Redactor, parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut stream = redactor.stream();
    let mut out: Vec<_> = parts.iter().map(|part| stream.push(Bytes::copy_from_slice(part)).to_vec()).collect();
    out.push(stream.finish().to_vec());
    out
}

fn whole(redactor: &Redactor, text: &str) -> String {
    String::from_utf8(streamed(redactor, &[text.as_bytes()]).concat()).expect("masks are text")
}

/// Every byte that is within an occurrence, region by region, looked for in the simplest way.
fn model(secrets: &[Vec<u8>], text: &[u8]) -> Vec<u8> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for start in 0..text.len() {
        let ends = secrets.iter().filter(|secret| secret.len() >= MIN_BODY_BYTES && text[start..].starts_with(secret));
        let Some(end) = ends.map(|secret| start + secret.len()).max() else { continue };
        match found.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => found.push((start, end)),
        }
    }
    let mut masked = text.to_vec();
    for (start, end) in found {
        masked[start..end].fill(b'*');
        if end - start >= MARK.len() {
            masked[start..start + MARK.len()].copy_from_slice(MARK);
        }
    }
    masked
}

#[test]
fn a_value_is_masked_at_its_length() {
    let redactor = redactor(&["sk-0123456789", "abcdef"]);
    assert_eq!(whole(&redactor, "key=sk-0123456789;"), "key=[REDACTED]***;");
    assert_eq!(whole(&redactor, "abcdef, abcde"), "******, abcde");
    assert_eq!(whole(&redactor, "nothing"), "nothing");
}

#[test]
fn values_that_overlap_or_begin_alike_leave_nothing() {
    let redactor = redactor(&["token", "token-and-more", "more-than-that"]);
    assert_eq!(whole(&redactor, "token-and-less"), "*****-and-less");
    assert_eq!(whole(&redactor, "token-and-more-than-that"), "[REDACTED]**************");
    assert_eq!(whole(&redactor, "tokentoken"), "**********");
}

#[test]
fn nothing_is_held_back_but_what_may_begin_a_value() {
    let redactor = redactor(&["secret-value", "lue-two", "value"]);
    let out = streamed(&redactor, &[b"data: x\n\n", b"data: sec", b"ret-v", b"alue", b"\n\n"]);
    assert_eq!(out[0], b"data: x\n\n");
    assert_eq!(out[1], b"data: ");
    assert_eq!(out[2], b"");
    // Its last bytes may be the first of another one; that the mark has room is known.
    assert_eq!(out[3], b"[REDACTED]"[..9]);
    assert_eq!(out[4], b"]**\n\n");
}

#[test]
fn what_is_over_is_not_held_back() {
    let out = streamed(&redactor(&["secret-value"]), &[b"secret-value", b"x"]);
    assert_eq!(out, [&b"[REDACTED]**"[..], b"x", b""]);
}

#[test]
fn a_value_without_end_takes_no_memory() {
    let mut stream = redactor(&["aaaaaaaaaaaa"]).stream();
    let mut out = Vec::new();
    for _ in 0..1000 {
        out.extend(stream.push(Bytes::from_static(b"aaaaaaa")));
        assert!(stream.held() < 12, "{}", stream.held());
    }
    out.extend(stream.finish());
    assert_eq!(out.len(), 7000);
    assert!(out.starts_with(MARK) && out[MARK.len()..].iter().all(|byte| *byte == FILL));
}

#[test]
fn what_holds_no_value_is_not_copied() {
    let mut stream = redactor(&["secret-value"]).stream();
    let chunk = Bytes::from(vec![b'x'; 1000]);
    assert_eq!(stream.push(chunk.clone()).as_ptr(), chunk.as_ptr());
    let chunk = Bytes::from([&[b'x'; 1000][..], b"sec"].concat());
    assert_eq!(stream.push(chunk.clone()).as_ptr(), chunk.as_ptr());
    assert_eq!(stream.held(), 3);
}

#[test]
fn a_stream_begins_again_after_its_end() {
    let redactor = redactor(&["secret-value"]);
    let mut stream = redactor.stream();
    assert_eq!(stream.push(Bytes::from_static(b"secret-")), "");
    assert_eq!(stream.finish(), "secret-");
    assert_eq!(stream.push(Bytes::from_static(b"value")), "value");
    assert_eq!(redact_nothing(), "as it was");
}

fn redact_nothing() -> Bytes {
    let redactor = redactor::<&[u8]>(&[]);
    assert!(redactor.is_empty() && redactor.text(b"text").is_none());
    redactor.stream().push(Bytes::from_static(b"as it was"))
}

#[test]
fn headers_are_redacted_one_by_one() {
    let redactor = redactor(&["Bearer abc", "abc", "12"]);
    let mut headers = HeaderMap::new();
    headers.append(SET_COOKIE, HeaderValue::from_static("a=abc; Path=/"));
    headers.append(SET_COOKIE, HeaderValue::from_static("b=1"));
    headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("12"));
    headers.insert("x-abc", HeaderValue::from_static("abcabc 12"));
    redactor.headers(&mut headers);
    let cookies: Vec<_> = headers.get_all(SET_COOKIE).iter().collect();
    assert_eq!(cookies, ["a=[REDACTED]; Path=/", "b=1"]);
    assert_eq!(headers[AUTHORIZATION], "[REDACTED]");
    assert_eq!(headers[CONTENT_LENGTH], "12");
    assert_eq!(headers["x-abc"], "[REDACTED][REDACTED] [REDACTED]");
}

#[test]
fn what_is_too_short_for_a_secret_stays_in_bodies() {
    let redactor = redactor(&["12", "1234"]);
    assert_eq!(whole(&redactor, "12 123 1234 12345"), "12 123 **** ****5");
    assert_eq!(redactor.text(b"112").as_deref(), Some(&b"1[REDACTED]"[..]));
}

fn parts(text: &[u8], mut cuts: Vec<usize>) -> Vec<&[u8]> {
    cuts.extend([0, text.len()]);
    cuts.iter_mut().for_each(|cut| *cut = (*cut).min(text.len()));
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn streams_are_as_the_model_however_they_are_cut(
        secrets in proptest::collection::vec("[ab]{1,6}|[abc]{9,14}", 1..6),
        text in "[ab]{0,60}|[abc]{0,200}",
        cuts in proptest::collection::vec(0usize..200, 0..12),
    ) {
        let secrets: Vec<_> = secrets.into_iter().map(String::into_bytes).collect();
        let out = streamed(&redactor(&secrets), &parts(text.as_bytes(), cuts));
        prop_assert_eq!(out.concat(), model(&secrets, text.as_bytes()));
    }

}

proptest! {
    #[test]
    fn values_in_all_their_forms_are_masked(
        value in "[ -~é]{4,24}",
        form in any::<prop::sample::Index>(),
        around in ["[ -~]{0,20}", "[ -~]{0,20}"],
        cuts in proptest::collection::vec(0usize..200, 0..6),
    ) {
        let forms: Vec<_> = crate::forms::of_value(&value);
        let form = &**form.get(&forms);
        let text = [around[0].as_bytes(), form, around[1].as_bytes()].concat();
        let plain: Vec<Vec<u8>> = forms.iter().map(|form| form.to_vec()).collect();
        let out = streamed(&redactor(&plain), &parts(&text, cuts)).concat();
        prop_assert_eq!(&out, &model(&plain, &text));
        if form.len() >= MIN_BODY_BYTES {
            prop_assert!(out.windows(form.len()).all(|window| window != form));
        }
    }

    #[test]
    fn only_what_may_begin_a_value_is_held_back(secrets in proptest::collection::vec("[ab]{4,8}", 1..4), text in "[abc]{0,40}") {
        let mut stream = redactor(&secrets).stream();
        stream.push(Bytes::copy_from_slice(text.as_bytes()));
        let begins = |from: &usize| {
            let rest = &text[*from..];
            secrets.iter().any(|secret| secret.len() > rest.len() && secret.starts_with(rest))
        };
        let open = text.len() - (0..text.len()).find(begins).unwrap_or(text.len());
        prop_assert!(stream.held() >= open);
        // A region that may grow waits as a whole while the mark may have no room in it.
        prop_assert!(stream.held() < open + MARK.len(), "{} of {}", stream.held(), open);
    }
}

#[test]
fn any_stream_is_as_the_model() {
    let examples: [&[u8]; 3] =
        [b"\x03\x05abcdabcdabcd-abc", b"\x09\x01key=sk-0123456789; key=0123456789", b"\x04\xff\x00\x00\x00\x00\x01"];
    let secrets: Vec<Vec<u8>> =
        [&b"abcd"[..], b"cdab", b"dabcdabcd-", b"sk-0123456789", b"0123456789", b"\0\0\0\0", b"89; key"]
            .map(<[u8]>::to_vec)
            .into();
    let redactor = redactor(&secrets);
    fuzz::run("redact", &examples, |input| {
        let [step, more, text @ ..] = input else { return };
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        let mut rest = text;
        let mut length = usize::from(*step);
        while !rest.is_empty() {
            length = (length * 7 + usize::from(*more)) % 23;
            let (part, after) = rest.split_at(length.min(rest.len()));
            out.extend(stream.push(Bytes::copy_from_slice(part)));
            rest = if length == 0 { &after[after.len().min(1)..] } else { after };
            if length == 0 {
                out.extend(stream.push(Bytes::copy_from_slice(&after[..after.len().min(1)])));
            }
        }
        out.extend(stream.finish());
        assert_eq!(out, model(&secrets, text));
    });
}
