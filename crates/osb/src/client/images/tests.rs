use super::*;

#[test]
fn lines_are_progress_image_or_failure() {
    assert!(matches!(read(br#"{"message":"downloading"}"#), Some(Line::Progress(text)) if text == "downloading"));
    let image = br#"{"image":{"id":"sha256:1","references":["a"],"platform":"linux/amd64","sizeBytes":1,"layers":1}}"#;
    assert!(matches!(read(image), Some(Line::Image(image)) if image.id == "sha256:1"));
    let error = br#"{"error":{"code":"X","message":"no such image"}}"#;
    assert!(matches!(read(error), Some(Line::Error { code, message }) if code == "X" && message == "no such image"));
    assert!(read(b"nonsense").is_none());
}
