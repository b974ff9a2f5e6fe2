//! The first packets: what both sides can, and who connects.
//!
//! Protocol 4.1 with native, SHA-256 and no other proofs of a password:
//! <https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase.html>.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use super::Broken;
use super::connection::Connection;
use super::packet::{Fields, Packets, read, said, write};
use crate::sql::pool::Login;
use crate::sql::tls::Encryption;

const LONG_PASSWORD: u32 = 1;
const CONNECT_WITH_DB: u32 = 1 << 3;
const PROTOCOL_41: u32 = 1 << 9;
const SSL: u32 = 1 << 11;
const TRANSACTIONS: u32 = 1 << 13;
const SECURE_CONNECTION: u32 = 1 << 15;
const PLUGIN_AUTH: u32 = 1 << 19;
/// All that is negotiated. Not among it: files of this machine (1 << 7), several statements (1 << 16), several results
/// (1 << 17, 1 << 18).
const WANTED: u32 = LONG_PASSWORD | CONNECT_WITH_DB | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH;

/// utf8mb4_general_ci
const CHARSET: u8 = 45;
const LARGEST: u32 = 1 << 24;

const NATIVE: &str = "mysql_native_password";
const SHA2: &str = "caching_sha2_password";

/// What a server says first.
struct Greeting {
    version: String,
    number: u32,
    can: u32,
    nonce: Vec<u8>,
    plugin: String,
}

/// Opens a connection.
pub(super) async fn open(
    mut stream: TcpStream,
    encryption: Option<Encryption>,
    database: &str,
    login: &Login,
) -> Result<Connection, Broken> {
    let (first, mut number) = read(&mut stream).await?;
    let greeting = greeting(&first)?;
    let is_encrypted = encryption.is_some();
    let flags = if is_encrypted { WANTED | SSL } else { WANTED };
    let mut head = Vec::new();
    head.extend_from_slice(&flags.to_le_bytes());
    head.extend_from_slice(&LARGEST.to_le_bytes());
    head.push(CHARSET);
    head.extend_from_slice(&[0; 23]);
    let mut packets = match encryption {
        Some(encryption) => {
            if greeting.can & SSL == 0 {
                return Err(Broken::Plain);
            }
            write(&mut stream, number, &head).await?;
            number += 1;
            let stream = encryption.encrypt(stream).await.map_err(Broken::Stream)?;
            Packets::new(Box::new(stream), number)
        }
        None => Packets::new(Box::new(stream), number),
    };
    let password = login.password.as_ref().map_or("", |password| password.expose());
    let plugin = if greeting.plugin == SHA2 { SHA2 } else { NATIVE };
    let proof = proof(plugin, password, &greeting.nonce)?;
    let mut answer = head;
    answer.extend_from_slice(login.user.expose().as_bytes());
    answer.push(0);
    answer.push(u8::try_from(proof.len()).unwrap_or_default());
    answer.extend_from_slice(&proof);
    for text in [database, plugin] {
        answer.extend_from_slice(text.as_bytes());
        answer.push(0);
    }
    packets.write(&answer).await?;
    prove(&mut packets, password, is_encrypted).await?;
    let is_mariadb = greeting.version.contains("MariaDB");
    Ok(Connection::new(packets, greeting.number, is_mariadb))
}

fn greeting(body: &[u8]) -> Result<Greeting, Broken> {
    if body.first() == Some(&0xff) {
        return Err(said(body));
    }
    let mut fields = Fields(body);
    if fields.u8()? != 10 {
        return Err(Broken::Nonsense("another protocol than MySQL's"));
    }
    let version = String::from_utf8_lossy(fields.terminated()).into_owned();
    let number = fields.u32()?;
    let mut nonce = fields.take(8)?.to_vec();
    fields.take(1)?;
    let low = fields.u16()?;
    fields.take(3)?;
    let can = u32::from(low) | u32::from(fields.u16()?) << 16;
    let length = fields.u8()?;
    fields.take(10)?;
    let rest = fields.take(usize::from(length).saturating_sub(8).max(13))?;
    nonce.extend_from_slice(rest.strip_suffix(&[0]).unwrap_or(rest));
    let plugin = String::from_utf8_lossy(fields.terminated()).into_owned();
    if can & PROTOCOL_41 == 0 || can & SECURE_CONNECTION == 0 {
        return Err(Broken::Nonsense("a server older than MySQL 4.1"));
    }
    Ok(Greeting {
        version,
        number,
        can,
        nonce,
        plugin,
    })
}

/// Proves the password, as often as the server asks, until it is content.
async fn prove(packets: &mut Packets, password: &str, is_encrypted: bool) -> Result<(), Broken> {
    for _ in 0..4 {
        let asked = packets.read().await?;
        match asked[0] {
            0x00 => return Ok(()),
            0xfe => {
                let mut fields = Fields(&asked[1..]);
                let plugin = String::from_utf8_lossy(fields.terminated()).into_owned();
                let nonce = fields.0.strip_suffix(&[0]).unwrap_or(fields.0);
                let proof = proof(&plugin, password, nonce)?;
                packets.write(&proof).await?;
            }
            // The server knows the proof.
            0x01 if asked.get(1) == Some(&3) => {}
            // It wants the password itself.
            0x01 if asked.get(1) == Some(&4) && is_encrypted => {
                let mut plain = zeroize::Zeroizing::new(password.as_bytes().to_vec());
                plain.push(0);
                packets.write(&plain).await?;
            }
            0x01 => {
                return Err(Broken::Login(
                    "the server wants to see the password itself, which is not sent unencrypted".to_owned(),
                ));
            }
            _ => return Err(Broken::Nonsense("a greeting that does not end")),
        }
    }
    Err(Broken::Nonsense("a login that does not end"))
}

/// What shows that one knows the password.
fn proof(plugin: &str, password: &str, nonce: &[u8]) -> Result<Vec<u8>, Broken> {
    if password.is_empty() {
        return Ok(Vec::new());
    }
    let mixed = |one: &[u8], other: &[u8]| one.iter().zip(other).map(|(one, other)| one ^ other).collect();
    match plugin {
        NATIVE => {
            let once = Sha1::digest(password);
            let both = Sha1::new()
                .chain_update(nonce)
                .chain_update(Sha1::digest(once))
                .finalize();
            Ok(mixed(&once, &both))
        }
        SHA2 => {
            let once = Sha256::digest(password);
            let both = Sha256::new()
                .chain_update(Sha256::digest(once))
                .chain_update(nonce)
                .finalize();
            Ok(mixed(&once, &both))
        }
        other => Err(Broken::Login(format!(
            "the user is to log in by {other:?}, which is not known here; {NATIVE} and {SHA2} are"
        ))),
    }
}
