declare namespace Chat {
  type Channel = {
    id: string;
    is_archived?: boolean;
    is_member?: boolean;
    is_private?: boolean;
    name?: string;
    num_members?: number;
    purpose?: { value?: string };
    topic?: { value?: string };
  };
  type Message = {
    /** When, and the message's id in its channel */
    ts: string;
    bot_id?: string;
    files?: { id?: string; mimetype?: string; name?: string | null; permalink?: string }[];
    reactions?: { count?: number; name?: string }[];
    reply_count?: number;
    subtype?: string;
    text?: string;
    thread_ts?: string;
    type?: string;
    user?: string;
  };
  type Posted = { channel: string; ts: string };
  type User = {
    id: string;
    deleted?: boolean;
    is_bot?: boolean;
    name?: string;
    profile?: { display_name?: string; email?: string; real_name?: string; title?: string };
    tz?: string;
  };
}
interface Services {
  /** Slack: channels, messages, threads, people and search */
  chat: {
    /** React to a message. Changes something. */
    addReaction(args: {
      channel: string;
      /** Without colons, such as eyes */
      name: string;
      ts: string;
    }): Promise<unknown>;
    /** Find a person by email. */
    findUser(args: { email: string }): Promise<Chat.User>;
    /** Get the address of a message. */
    getPermalink(args: { channel: string; ts: string }): Promise<string>;
    /** Get a person by id. */
    getUser(args: { user: string }): Promise<Chat.User>;
    /** List channels. */
    listChannels(args?: {
      cursor?: string;
      exclude_archived?: boolean;
      /** at least 1; at most 1000; default 100 */
      limit?: number;
      /** public_channel and private_channel, with a comma between them; default "public_channel" */
      types?: string;
    }): Promise<Page<Chat.Channel>>;
    /** List a channel's messages, the newest first; without replies in threads. */
    listMessages(args: {
      /** The channel's id, such as C0123456789 */
      channel: string;
      cursor?: string;
      inclusive?: boolean;
      /** Only before this ts */
      latest?: string;
      /** at least 1; at most 999; default 100 */
      limit?: number;
      /** Only after this ts */
      oldest?: string;
    }): Promise<Page<Chat.Message>>;
    /** List a thread: its first message, then the replies. */
    listReplies(args: {
      channel: string;
      /** Of the thread's first message */
      ts: string;
      cursor?: string;
      /** at least 1; at most 999; default 100 */
      limit?: number;
    }): Promise<Page<Chat.Message>>;
    /** List people and bots. */
    listUsers(args?: {
      cursor?: string;
      /** at least 1; at most 1000; default 200 */
      limit?: number;
    }): Promise<Page<Chat.User>>;
    /** Post a message, or a reply in a thread. Changes something. */
    postMessage(args: {
      channel: string;
      /** Slack's mrkdwn: *bold*, _italic_, <https://example.com|text>; at most 40000 characters */
      text: string;
      /** Block Kit; `text` is then what notifications show; at most 50 items */
      blocks?: { [key: string]: unknown }[];
      reply_broadcast?: boolean;
      thread_ts?: string;
    }): Promise<Chat.Posted>;
    /** Search messages, such as `refund in:#support after:2026-05-01`. */
    searchMessages(args: {
      query: string;
      /** at least 1; at most 100; default 20 */
      count?: number;
      cursor?: string;
      sort?: "score" | "timestamp";
      sort_dir?: "asc" | "desc";
    }): Promise<Page<{
      ts: string;
      channel?: { id?: string; name?: string };
      permalink?: string;
      text?: string;
      user?: string | null;
      username?: string;
    }>>;
    /** Change a message of our own. Changes something. */
    updateMessage(args: {
      channel: string;
      /** at most 40000 characters */
      text: string;
      ts: string;
      /** at most 50 items */
      blocks?: { [key: string]: unknown }[];
    }): Promise<Chat.Posted>;
  };
}
