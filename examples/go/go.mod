// Backends of localnet in Go. A backend outside this repository has no replace line.
module localnet.dev/examples/go

go 1.25.0

require localnet.dev/go v0.0.0

require (
	golang.org/x/net v0.51.0 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.34.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
	google.golang.org/grpc v1.81.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace localnet.dev/go => ../../go
