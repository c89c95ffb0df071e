// go-gtp's user plane on both sides of the function:
//
//	peer talk|marked|live OURS-CORE OURS-RADIO THEIRS-CORE THEIRS-RADIO TEID-CORE TEID-RADIO
//
// The first two addresses are the function's, the next two are for this program, and the numbers are the function's. This program's own are
// 0xc0 and 0xa0.
package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/wmnsk/go-gtp/gtpv1"
	"github.com/wmnsk/go-gtp/gtpv1/message"
)

const (
	packets = 50
	limit   = 5 * time.Second
)

// An end on one side.
type end struct {
	name     string
	conn     *gtpv1.UPlaneConn
	function net.Addr
	// The function's number for the tunnel, and this end's.
	teid, own uint32
}

// What came to one of the ends.
type arrival struct {
	to  string
	msg message.Message
}

var arrivals = make(chan arrival, packets)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) != 7 {
		return fmt.Errorf("peer talk|marked|live OURS-CORE OURS-RADIO THEIRS-CORE THEIRS-RADIO TEID-CORE TEID-RADIO")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ends := make([]*end, 2)
	for side, own := range []uint32{0xc0, 0xa0} {
		teid, err := strconv.ParseUint(words[5+side], 10, 32)
		if err != nil {
			return err
		}
		ends[side], err = open(ctx, words[1+side], words[3+side], uint32(teid), own)
		if err != nil {
			return err
		}
	}
	switch words[0] {
	case "talk":
		return talk(ends)
	case "marked":
		fmt.Println("ready")
		_, err := wait(ends[1], message.MsgTypeEndMarker)
		return err
	case "live":
		// Until it is killed.
		select {}
	}
	return fmt.Errorf("%s is nothing to do", words[0])
}

func open(ctx context.Context, function, own string, teid, number uint32) (*end, error) {
	address := func(host string) (*net.UDPAddr, error) {
		return net.ResolveUDPAddr("udp", net.JoinHostPort(host, "2152"))
	}
	there, err := address(function)
	if err != nil {
		return nil, err
	}
	here, err := address(own)
	if err != nil {
		return nil, err
	}
	conn := gtpv1.NewUPlaneConn(here)
	tell := func(c gtpv1.Conn, _ net.Addr, msg message.Message) error {
		arrivals <- arrival{c.LocalAddr().String(), msg}
		return nil
	}
	for _, kind := range []uint8{message.MsgTypeTPDU, message.MsgTypeEchoResponse, message.MsgTypeErrorIndication, message.MsgTypeEndMarker} {
		conn.AddHandler(kind, tell)
	}
	go func() {
		if err := conn.ListenAndServe(ctx); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}()
	// Its socket is made by that, and nothing tells when.
	time.Sleep(100 * time.Millisecond)
	return &end{here.String(), conn, there, teid, number}, nil
}

// Waits for a message of a kind at an end; nothing else may come before it.
func wait(at *end, kind uint8) (message.Message, error) {
	select {
	case came := <-arrivals:
		if came.to != at.name || came.msg.MessageType() != kind {
			return nil, fmt.Errorf("%s came to %s, and not kind %d to %s", came.msg.MessageTypeName(), came.to, kind, at.name)
		}
		return came.msg, nil
	case <-time.After(limit):
		return nil, fmt.Errorf("no message of kind %d came to %s", kind, at.name)
	}
}

func talk(ends []*end) error {
	for side, from := range ends {
		if err := from.conn.EchoRequest(from.function); err != nil {
			return err
		}
		if _, err := wait(from, message.MsgTypeEchoResponse); err != nil {
			return err
		}
		to := ends[1-side]
		for number := range packets {
			if err := packet(from, to, number); err != nil {
				return err
			}
		}
		if err := unknown(from); err != nil {
			return err
		}
		marker := message.NewEndMarker()
		marker.Header.TEID = from.teid
		sent, err := marker.Marshal()
		if err != nil {
			return err
		}
		if _, err := from.conn.WriteTo(sent, from.function); err != nil {
			return err
		}
		if _, err := wait(to, message.MsgTypeEndMarker); err != nil {
			return err
		}
	}
	return nil
}

// Sends a packet, one of two with a PDU Session Container, and waits for it at the other end. They are sent one at a time, as this peer
// reads all of them to one buffer.
func packet(from, to *end, number int) error {
	payload := bytes.Repeat([]byte{byte(number)}, 20+7*number)
	header := message.NewHeader(0x30, message.MsgTypeTPDU, from.teid, 0, payload)
	container := []byte{0, byte(number % 64)}
	if number%2 == 1 {
		extension := message.NewExtensionHeader(message.ExtHeaderTypePDUSessionContainer, container, message.ExtHeaderTypeNoMoreExtensionHeaders)
		header = message.NewHeaderWithExtensionHeaders(0x34, message.MsgTypeTPDU, from.teid, 0, payload, extension)
	}
	sent, err := header.Marshal()
	if err != nil {
		return err
	}
	if _, err := from.conn.WriteTo(sent, from.function); err != nil {
		return err
	}
	came, err := wait(to, message.MsgTypeTPDU)
	if err != nil {
		return fmt.Errorf("packet %d: %w", number, err)
	}
	tpdu, ok := came.(*message.TPDU)
	if !ok || tpdu.TEID() != to.own || !bytes.Equal(tpdu.Payload, payload) {
		return fmt.Errorf("packet %d came as %v", number, came)
	}
	if number%2 == 1 {
		extensions := tpdu.ExtensionHeaders
		if len(extensions) != 1 || !bytes.Equal(extensions[0].Content, container) {
			return fmt.Errorf("packet %d came with %v", number, extensions)
		}
	}
	return nil
}

// Sends to a tunnel that there is not.
func unknown(from *end) error {
	if _, err := from.conn.WriteToGTP(0x7fffffff, []byte("with no tunnel"), from.function); err != nil {
		return err
	}
	came, err := wait(from, message.MsgTypeErrorIndication)
	if err != nil {
		return err
	}
	lost, ok := came.(*message.ErrorIndication)
	if !ok || lost.TEIDDataI.MustTEID() != 0x7fffffff {
		return fmt.Errorf("%v came", came)
	}
	host, _, _ := net.SplitHostPort(from.function.String())
	if peer := lost.GTPUPeerAddress.MustIPAddress(); peer != host {
		return fmt.Errorf("an error indication names %s, and not %s", peer, host)
	}
	return nil
}
