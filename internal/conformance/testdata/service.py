"""The service of the conformance suite: HTTP and WebSocket, on a port that it chooses and prints."""
import base64, hashlib, http.server, random, sys, threading

go_on = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        if self.path.startswith("/teapot"):
            self.reply(418, b"")
        elif self.headers.get("Upgrade", "").lower() == "websocket":
            self.socket()
        elif self.path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.chunk(b"first\n")
            go_on.wait(60)
            self.chunk(b"second\n")
            self.chunk(b"")
        else:
            self.reply(200, f"GET {self.path} {self.headers.get('X-Case', '')}".encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/go":
            go_on.set()
        self.reply(200, body)

    def socket(self):
        """Sends each message back, until it is closed."""
        self.close_connection = True
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            kind = head[0] & 15
            head = bytes([head[0] & 0xF0 | (10 if kind == 9 else kind)])
            if size > 65535:
                head += b"\x7f" + size.to_bytes(8, "big")
            elif size > 125:
                head += b"\x7e" + size.to_bytes(2, "big")
            else:
                head += bytes([size])
            self.wfile.write(head + data)
            if kind == 8:
                return


while True:
    try:  # previews lead to these ports
        server = http.server.ThreadingHTTPServer((sys.argv[1], random.randint(3000, 9999)), Handler)
        break
    except OSError:
        pass
print(server.server_address[1], flush=True)
server.serve_forever()
