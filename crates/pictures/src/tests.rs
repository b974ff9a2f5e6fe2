use super::*;

/// Pictures of 3 × 2 pixels, one of each way to write them.
const WHOLE: [(Kind, &str); 7] = [
    (
        Kind::Png,
        "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR42mP8zwAFTDAGAwATKQEDGNmoCwAAAABJRU5ErkJggg==",
    ),
    (
        Kind::Gif,
        "R0lGODdhAwACAIEAAP8AAAAAAAAAAAAAACwAAAAAAwACAAAIBgABCBwYEAA7",
    ),
    (
        Kind::Jpeg,
        "/9j/4AAQSkZJRgABAQAAAQABAAD/4QA4RXhpZgAATU0AKgAAAAgAAQEOAAIAAAAVAAAAGgAAAAB4eHh4eHh4eHh4eHh4eHh4eHh4eAAA/9sAQwD//////////////////////////////////////////////////////////////////////////////////////8AACwgAAgADAQERAP/EABQAAQAAAAAAAAAAAAAAAAAAAAL/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oACAEBAAA/AC//2Q==",
    ),
    // With loss, without, with transparency, and one that moves.
    (
        Kind::Webp,
        "UklGRjIAAABXRUJQVlA4ICYAAABwAQCdASoDAAIADMDOJaACdAFAAAD+3FHSXS5Df6u/O36ntgAAAA==",
    ),
    (Kind::Webp, "UklGRhwAAABXRUJQVlA4TA8AAAAvAkAAAAcQ/Y/+ByKi/wEA"),
    (
        Kind::Webp,
        "UklGRlQAAABXRUJQVlA4WAoAAAAQAAAAAgAAAQAAQUxQSAcAAAAAZGRkZGRkAFZQOCAmAAAAcAEAnQEqAwACAAzAziWgAnQBQAAA/txR0l0uQ3+rvzt+p7YAAAA=",
    ),
    (
        Kind::Webp,
        "UklGRq4AAABXRUJQVlA4WAoAAAACAAAAAgAAAQAAQU5JTQYAAAAAAAAAAABBTk1GMAAAAAAAAAAAAAIAAAEAAAoAAAJWUDggGAAAADABAJ0BKgMAAgABQCYlpAADcAD+/TZoAEFOTUZKAAAAAAAAAAAAAgAAAQAACgAAAFZQOCAyAAAANAEAnQEqAwACAAAAJiWgAANwAP7guX//7Gb//ozf/9Gb+wB//958//7nz//ufP+EAAA=",
    ),
];

fn bytes(data: &str) -> Vec<u8> {
    STANDARD.decode(data).unwrap()
}

#[test]
fn every_kind_tells_its_sides() {
    for (kind, data) in WHOLE {
        let picture = Picture {
            kind,
            width: 3,
            height: 2,
        };
        assert_eq!(look_at_base64(kind.media_type(), data), Ok(picture), "{data}");
    }
}

#[test]
fn a_picture_that_is_cut_anywhere_is_broken() {
    for (kind, data) in WHOLE {
        let whole = bytes(data);
        let end = whole.len() - usize::from(kind == Kind::Gif);
        for end in 0..end {
            assert!(look(&whole[..end]).is_err(), "{kind} cut at {end}");
        }
    }
}

#[test]
fn a_jpeg_tells_its_sides_behind_as_much_as_a_camera_writes_before_them() {
    let whole = bytes(WHOLE[2].1);
    let mut long = whole[..2].to_vec();
    for _ in 0..4 {
        long.extend_from_slice(&[0xff, 0xe1, 0xff, 0xff]);
        // As a thumbnail has them: a frame of its own, and an end.
        let mut segment = vec![0xff, 0xc0, 0, 11, 8, 0, 9, 0, 9, 1, 1, 0x11, 0, 0xff, 0xd9];
        segment.resize(0xffff - 2, 0);
        long.extend_from_slice(&segment);
    }
    long.extend_from_slice(&whole[2..]);
    let sides = look(&long).map(|picture| (picture.width, picture.height));
    assert_eq!(sides, Ok((3, 2)));
}

#[test]
fn what_only_begins_as_a_picture_is_none() {
    let broken =
        |kind| move |error: &PictureError| matches!(error, PictureError::Broken { kind: found, .. } if *found == kind);
    type Is<'t> = &'t dyn Fn(&PictureError) -> bool;
    let with = |place: usize, byte: u8, which: usize| {
        let mut bytes = bytes(WHOLE[which].1);
        bytes[place] = byte;
        bytes
    };
    let cases: [(Vec<u8>, Is<'_>); 9] = [
        (b"plain text".to_vec(), &|error| *error == PictureError::Unknown),
        (Vec::new(), &|error| *error == PictureError::Unknown),
        (b"RIFF\0\0\0\0WAVE".to_vec(), &|error| *error == PictureError::Unknown),
        (b"\x89PNG\r\n\x1a\n".to_vec(), &broken(Kind::Png)),
        // No width, and no header.
        (with(19, 0, 0), &broken(Kind::Png)),
        (with(12, b'X', 0), &broken(Kind::Png)),
        // Wider than anybody takes.
        (with(17, 0x01, 0), &|error| *error == PictureError::TooLarge),
        (b"GIF89a\x03\0\x02\0\0\0\0;".to_vec(), &broken(Kind::Gif)),
        (b"\xff\xd8\xff\xd9".to_vec(), &broken(Kind::Jpeg)),
    ];
    for (bytes, is) in cases {
        let error = look(&bytes).unwrap_err();
        assert!(is(&error), "{error:?} for {bytes:?}");
    }
    let mut large = bytes(WHOLE[0].1);
    large.resize(MAX_BYTES + 1, 0);
    assert_eq!(look(&large), Err(PictureError::TooLarge));
}

#[test]
fn what_is_said_of_a_picture_must_be_so() {
    let (_, png) = WHOLE[0];
    let mistaken = PictureError::Mistaken {
        told: "image/jpeg".to_owned(),
        found: Kind::Png,
    };
    assert_eq!(look_at_base64("image/jpeg", png), Err(mistaken));
    for malformed in ["iVBORw0KGgo", "iVBORw0KGgo*", "iVBO\nRw0K"] {
        assert_eq!(look_at_base64("image/png", malformed), Err(PictureError::Malformed));
    }
    let huge = "A".repeat(MAX_BYTES * 2);
    assert_eq!(look_at_base64("image/png", &huge), Err(PictureError::TooLarge));
}
