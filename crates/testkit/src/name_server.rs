//! A name server on this machine's loopback, which remembers every packet.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use lifecycle::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::upstream::own_address;

/// The longest message over UDP.
const LONGEST: usize = 4_096;

/// Knows some names and no others, by UDP and TCP (RFC 1035). Ends with its value.
#[derive(Debug)]
pub struct NameServer {
    address: Ipv4Addr,
    packets: Arc<Mutex<Vec<Vec<u8>>>>,
    tasks: Tasks,
}

impl NameServer {
    /// Listens at port 53 of an address of its own. Needs to be root, or a machine on which everybody may listen there.
    pub async fn start(names: BTreeMap<String, Ipv4Addr>) -> Self {
        let address = own_address();
        let failed = |error| panic!("listen on {address}:53: {error}");
        let socket = UdpSocket::bind((address, 53)).await.unwrap_or_else(failed);
        let listener = TcpListener::bind((address, 53))
            .await
            .unwrap_or_else(|error| panic!("listen on {address}:53: {error}"));
        let (packets, names, tasks) = (Arc::default(), Arc::new(names), Tasks::new());
        tasks.spawn_until_stopped(by_udp(socket, Arc::clone(&names), Arc::clone(&packets)));
        tasks.spawn_until_stopped(by_tcp(listener, names, Arc::clone(&packets), tasks.clone()));
        Self {
            address,
            packets,
            tasks,
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Every message that came, as it came.
    #[must_use]
    pub fn packets(&self) -> Vec<Vec<u8>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names that were asked for.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        let packets = self.packets();
        packets.iter().filter_map(|packet| Some(question(packet)?.0)).collect()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

type Names = Arc<BTreeMap<String, Ipv4Addr>>;
type Packets = Arc<Mutex<Vec<Vec<u8>>>>;

fn keep(packets: &Packets, packet: &[u8]) {
    let mut packets = packets.lock().unwrap_or_else(PoisonError::into_inner);
    packets.push(packet.to_vec());
}

async fn by_udp(socket: UdpSocket, names: Names, packets: Packets) {
    let mut packet = [0; LONGEST];
    while let Ok((length, from)) = socket.recv_from(&mut packet).await {
        let packet = &packet[..length];
        keep(&packets, packet);
        if let Some(answer) = answer(packet, &names) {
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

async fn by_tcp(listener: TcpListener, names: Names, packets: Packets, tasks: Tasks) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let (names, packets) = (Arc::clone(&names), Arc::clone(&packets));
        tasks.spawn_until_stopped(async move {
            // Who goes away has had enough.
            while one_by_tcp(&mut stream, &names, &packets).await.is_ok() {}
        });
    }
}

async fn one_by_tcp(stream: &mut TcpStream, names: &Names, packets: &Packets) -> std::io::Result<()> {
    let length = stream.read_u16().await?;
    let mut packet = vec![0; usize::from(length)];
    stream.read_exact(&mut packet).await?;
    keep(packets, &packet);
    let answer = answer(&packet, names).ok_or(std::io::ErrorKind::InvalidData)?;
    let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&answer).await
}

/// The name that a message asks for, its kind, and where the question ends.
fn question(packet: &[u8]) -> Option<(String, u16, usize)> {
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(packet.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]);
    packet.get(at + 3)?;
    Some((labels.join("."), kind, at + 4))
}

/// An address for a name that is known, nothing for other kinds of question about it, and that there is no such name.
fn answer(packet: &[u8], names: &BTreeMap<String, Ipv4Addr>) -> Option<Vec<u8>> {
    const A: u16 = 1;
    let (name, kind, end) = question(packet)?;
    let known = names.get(&name);
    let address = known.filter(|_| kind == A);
    let mut answer = packet.get(..2)?.to_vec();
    answer.extend([0x81, if known.is_some() { 0x80 } else { 0x83 }]);
    for count in [1, u16::from(address.is_some()), 0, 0] {
        answer.extend(count.to_be_bytes());
    }
    answer.extend(packet.get(12..end)?);
    if let Some(address) = address {
        // The name of the question, an address of the internet, good for a minute, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
