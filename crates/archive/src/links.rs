//! Which symbolic links travel.

/// What becomes of symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// They are made as they are: whoever follows them later is inside of a sandbox.
    Keep,
    /// Those that cannot lead out of the tree are made. A file behind another one is packed in its place; what
    /// is no file, and any such link of an archive, is left out and named.
    Inside,
}

/// Whether a link that lies `depth` directories below the top of a tree can only lead into the tree, whatever
/// other such links it passes: up first, never further than the top, then down.
pub fn leads_inside(depth: usize, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let mut parts = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let up = parts.by_ref().take_while(|part| *part == b"..").count();
    // The part that ended the count went downwards; none behind it may go up again.
    up <= depth && parts.all(|part| part != b"..")
}

#[cfg(test)]
mod tests {
    use super::leads_inside;

    #[test]
    fn a_link_leads_up_no_further_than_the_top_and_then_only_down() {
        for (depth, target) in
            [(0, "a"), (0, "a/b"), (1, "../a"), (2, "../../a/b"), (2, "./.././a"), (0, "."), (1, "..")]
        {
            assert!(leads_inside(depth, target.as_bytes()), "{depth} {target}");
        }
        // The last one goes through a directory that may be a link itself.
        for (depth, target) in [(0, "/etc"), (0, ".."), (1, "../../a"), (2, "../../.."), (3, "a/../b"), (3, "../a/..")]
        {
            assert!(!leads_inside(depth, target.as_bytes()), "{depth} {target}");
        }
    }
}
